#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "pitch.hpp"
#include "view.hpp"

namespace onedsl {

// The memory layout of a dense tensor of any rank, as an array of shape (outer, channels, inner) in
// C order: NXC memory is (N * X, C, 1) and NCX memory is (N, C, X). Each channel has statistics of
// its own. All sums run over outer and inner, so the order of the axes that are merged into them
// does not matter.
struct Geometry {
  std::int64_t outer = 0;
  std::int64_t channels = 0;
  std::int64_t inner = 0;

  constexpr std::int64_t per_channel() const noexcept { return outer * inner; }
  constexpr std::int64_t elements() const noexcept { return channels * per_channel(); }
  constexpr Pitch dense_pitch() const noexcept { return {channels * inner, inner}; }
};

// The largest tensor, as large as the address space of x86-64. A size of 0 counts as 1, as in
// NumPy. No product of sizes and small constants overflows 64 bits below it, so sizes are checked
// here and nowhere else.
constexpr std::int64_t max_tensor_bytes = std::int64_t{1} << 56;

// The axes that are merged into the channels, one bit each.
using ChannelAxes = std::uint64_t;

// Return the index of an axis, negative ones from the end; nullopt if there is none.
constexpr std::optional<std::ptrdiff_t> axis_at(const std::ptrdiff_t index,
                                                const std::ptrdiff_t rank) noexcept {
  const std::ptrdiff_t axis = index + (index < 0 ? rank : 0);
  return axis >= 0 && axis < rank ? std::optional(axis) : std::nullopt;
}

// Return the strides in elements of a dense tensor whose i-th fastest axis is axis_of(i). Strides
// that overflow are 0; memory_order rejects such tensors, unless they are empty.
template <typename AxisOf>
std::vector<std::ptrdiff_t> strides_in_order(const std::ptrdiff_t rank,
                                             const std::ptrdiff_t* const shape,
                                             const AxisOf& axis_of) {
  std::vector<std::ptrdiff_t> strides(static_cast<std::size_t>(rank));
  std::ptrdiff_t stride = 1;
  for (std::ptrdiff_t i = 0; i < rank; ++i) {
    const auto axis = static_cast<std::size_t>(axis_of(i));
    strides[axis] = stride;
    const std::ptrdiff_t size = std::max<std::ptrdiff_t>(shape[axis], 1);
    if (__builtin_mul_overflow(stride, size, &stride)) break;
  }
  return strides;
}

// Return the strides in elements of an array in C order.
inline std::vector<std::ptrdiff_t> c_strides(const std::ptrdiff_t rank,
                                             const std::ptrdiff_t* const shape) {
  return strides_in_order(rank, shape, [&](const std::ptrdiff_t i) { return rank - 1 - i; });
}

// The axes of a tensor in the order in which a dense copy has them (np.copy(tensor, order="K")):
// by the magnitudes of their strides. For example, with shape (2, 3, 4) and strides (12, 1, 3) the
// order is 0, 2, 1. Several channel axes are kept together, in their order in the shape: if 0 and 1
// are the channel axes, the order is 0, 1, 2, in which this tensor is not dense.
struct MemoryOrder {
  Geometry geometry;  // of the dense copy
  // Slowest first, without those of size 1. None if the tensor has no elements.
  std::array<std::uint8_t, max_rank> axes;
  std::ptrdiff_t count = 0;  // of these axes

  const std::uint8_t* begin() const noexcept { return axes.data(); }
  const std::uint8_t* end() const noexcept { return axes.data() + count; }
};

// Return the memory order of src, which decides the summation order.
//
// Return nullopt if it has more than max_rank axes or max_tensor_bytes.
std::optional<MemoryOrder> memory_order(const View& src, ChannelAxes channel_axes) noexcept;

// Return whether the elements of a tensor of src's shape are neighbors in this order.
bool is_dense_in(const View& tensor, const MemoryOrder& order) noexcept;

// Return the strides in elements of a dense copy in this order.
std::vector<std::ptrdiff_t> dense_strides(const View& tensor, const MemoryOrder& order);

// What the kernels of every instruction set rely on: vectors of up to this many elements, ...
constexpr std::int64_t max_lanes = 16;
// ... and, in tensors that are not dense, positions of columns that consist of whole pairs of
// vectors, or are longer than those that are joined to rows (see
// native/kernels/summation_order.hpp).
constexpr std::int64_t pair_elements = 2 * max_lanes;
constexpr std::int64_t max_joined_position = 1024;

// Return the pitch of a tensor of src's shape, nullopt if the kernels cannot read its layout.
std::optional<Pitch> pitch_of(const View& tensor, const MemoryOrder& order) noexcept;

// Return whether no two elements of a tensor share memory, as far as sorted strides show it. True
// for every slice or permutation of the axes of a dense tensor.
bool has_separate_elements(const View& tensor) noexcept;

// Return the Geometry of a tensor that is dense in its memory order (no gaps, overlap or negative
// strides), nullopt for others.
std::optional<Geometry> dense_geometry(const View& tensor, ChannelAxes channel_axes) noexcept;

}  // namespace onedsl
