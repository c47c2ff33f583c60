#pragma once

#include <array>
#include <cstddef>

#include "../core/layout.hpp"
#include "kernels.hpp"
#include "summation_order.hpp"

// Copies of boxes between tensors of any strides and dense buffers.
namespace onedsl::native {

// The axes of outer, channels and inner. In each group an index is a number of elements in the
// memory order of src.
using Axes = std::array<Layout, 3>;
using Extents = std::array<Index, 3>;
using Ranges = std::array<Range, 3>;

// Split the axes of a tensor.
Axes split_axes(Layout layout, const SummationOrder& order);

// Return the offset of the i-th element, and of the first one of a box.
Index offset_of(const Layout& axes, Index i);
Index offset_of(const Axes& axes, const Ranges& ranges);

// Return whether the axes have one stride, or a single element.
bool is_strided_by(const Layout& axes, Index stride);

struct TensorBox {
  std::byte* data;  // of the tensor
  const Axes& axes;
  Ranges ranges;
  Index to_next;  // distance to the box that is prefetched, or 0
};

// Copies a box from or to a buffer, where the groups have the given strides.
void copy_box(const Kernels& kernels, DataType type, const TensorBox& box, std::byte* buffer,
              const Extents& strides, bool to_tensor);

}  // namespace onedsl::native
