#include "box_copy.hpp"

#include <algorithm>

#include "../core/geometry.hpp"

namespace onedsl::native {
namespace {

// Copies a box between a tensor and a buffer: matrices of two loops, in loops over the other axes.
class BoxCopy {
 public:
  BoxCopy(const Kernels& kernels, const DataType type, const TensorBox& box,
          std::byte* const buffer, const Extents& strides, const bool to_tensor)
      : kernels_(kernels),
        type_(type),
        box_(box),
        buffer_(buffer),
        strides_(strides),
        to_tensor_(to_tensor) {
    copy_.to_tensor = to_tensor;
    copy_.to_next = box.to_next;
  }

  void run() { visit_group(0, 0, 0); }

 private:
  struct Loop {
    Index size = 1;
    Index tensor = 0;  // strides, in elements
    Index local = 0;
  };

  void visit_group(const std::size_t group, const Index tensor, const Index local) {
    if (group == 3) return copy_loops(tensor, local);
    const Layout& axes = box_.axes[group];
    visit(group, axes.data(), axes.data() + axes.size(), box_.ranges[group], tensor, local);
  }

  // Visits a range of the elements of some axes as boxes: the end of one index of the slowest axis,
  // whole ones, and the beginning of another. The elements 3 to 10 of axes of (3, 4) are the last
  // one of index 0, all of index 1, and the first two of index 2.
  void visit(const std::size_t group, const Axis* const axis, const Axis* const end,
             const Range& range, const Index tensor, const Index local) {
    if (range.begin == range.end) return;
    if (axis == end) return visit_group(group + 1, tensor, local);
    const Index stride = strides_[group];
    Index inner = 1;
    for (const Axis* next = axis + 1; next != end; ++next) inner *= next->size;
    for (Index at = range.begin; at < range.end;) {
      const Index index = at / inner;
      const Index to = local + (at - range.begin) * stride;
      const Index whole = at % inner == 0 ? range.end / inner - index : 0;
      if (whole == 0) {
        const Range part{at % inner, std::min(inner, range.end - index * inner)};
        visit(group, axis + 1, end, part, tensor + index * axis->stride, to);
        at = index * inner + part.end;
        continue;
      }
      const std::size_t before = num_loops_;
      loops_[num_loops_++] = {whole, axis->stride, inner * stride};
      Index size = inner;
      for (const Axis* next = axis + 1; next != end; ++next) {
        size /= next->size;
        loops_[num_loops_++] = {next->size, next->stride, size * stride};
      }
      visit_group(group + 1, tensor + index * axis->stride, to);
      num_loops_ = before;
      at += whole * inner;
    }
  }

  void copy_loops(const Index tensor, const Index local) {
    std::array<Loop, max_loops> merged;
    std::size_t count = 0;
    for (std::size_t i = 0; i < num_loops_; ++i) {
      const Loop& loop = loops_[i];
      if (loop.size == 1) continue;
      Loop* const last = count == 0 ? nullptr : &merged[count - 1];
      if (last != nullptr && last->tensor == loop.tensor * loop.size &&
          last->local == loop.local * loop.size) {
        *last = {last->size * loop.size, loop.tensor, loop.local};
      } else {
        merged[count++] = loop;
      }
    }
    // The loop over neighbors in the buffer is the last one. The other loop of the matrices is that
    // over neighbors in the tensor, if it is not the same one.
    const Loop x = count == 0 ? Loop{} : merged[--count];
    std::size_t other = count;
    while (other > 0 && merged[other - 1].tensor != 1) --other;
    const bool transposes = other > 0 && x.tensor != 1;
    if (!transposes) other = count;
    Loop y;
    if (other > 0) {
      y = merged[other - 1];
      std::copy(&merged[other], &merged[count], &merged[other - 1]);
      --count;
    }
    const auto set = [&](const Loop& loop, Index& from, Index& to) {
      from = to_tensor_ ? loop.local : loop.tensor;
      to = to_tensor_ ? loop.tensor : loop.local;
      return loop.size;
    };
    // The rows of `from` have columns of neighbors.
    const bool swaps = transposes && !to_tensor_;
    copy_.rows = set(swaps ? x : y, copy_.from_row, copy_.to_row);
    copy_.columns = set(swaps ? y : x, copy_.from_column, copy_.to_column);
    if (copy_.columns == 1) copy_.from_column = copy_.to_column = 1;
    run_loops(merged.data(), merged.data() + count, tensor, local);
  }

  void run_loops(const Loop* const loop, const Loop* const end, const Index tensor,
                 const Index local) {
    if (loop == end) {
      const auto bytes = static_cast<Index>(size_of(type_));
      copy_.from = to_tensor_ ? buffer_ + local * bytes : box_.data + tensor * bytes;
      copy_.to = to_tensor_ ? box_.data + tensor * bytes : buffer_ + local * bytes;
      return kernels_.copy(copy_, type_);
    }
    for (Index i = 0; i < loop->size; ++i) {
      run_loops(loop + 1, end, tensor + i * loop->tensor, local + i * loop->local);
    }
  }

  static constexpr std::size_t max_loops = max_rank + 3;  // each group may split an axis

  const Kernels& kernels_;
  DataType type_;
  const TensorBox& box_;
  std::byte* buffer_;
  const Extents& strides_;
  bool to_tensor_;
  Copy copy_;
  std::array<Loop, max_loops> loops_;
  std::size_t num_loops_ = 0;
};

}  // namespace

// Split the axes of a tensor into those of outer, channels and inner.
Axes split_axes(Layout layout, const SummationOrder& order) {
  if (layout.empty()) layout = {{order.outer * order.channels * order.inner, 1}};
  const Extents sizes{order.outer, order.channels, order.inner};
  Axes axes;
  for (std::size_t group = 3; group-- > 0;) {
    for (Index needed = sizes[group]; needed > 1;) {
      Axis& fastest = layout.back();
      const Index size = std::min(needed, fastest.size);
      axes[group].insert(axes[group].begin(), Axis{size, fastest.stride});
      needed /= size;
      fastest = {fastest.size / size, fastest.stride * size};
      if (fastest.size == 1) layout.pop_back();
    }
  }
  return axes;
}

// Return the offset of the i-th element.
Index offset_of(const Layout& axes, Index i) {
  Index offset = 0;
  for (std::size_t axis = axes.size(); axis-- > 0; i /= axes[axis].size) {
    offset += i % axes[axis].size * axes[axis].stride;
  }
  return offset;
}

Index offset_of(const Axes& axes, const Ranges& ranges) {
  Index offset = 0;
  for (std::size_t g = 0; g < 3; ++g) offset += offset_of(axes[g], ranges[g].begin);
  return offset;
}

// Return whether the axes have one stride, or a single element.
bool is_strided_by(const Layout& axes, const Index stride) {
  return axes.empty() || (axes.size() == 1 && axes.front().stride == stride);
}

void copy_box(const Kernels& kernels, const DataType type, const TensorBox& box,
              std::byte* const buffer, const Extents& strides, const bool to_tensor) {
  BoxCopy(kernels, type, box, buffer, strides, to_tensor).run();
}

}  // namespace onedsl::native
