#include "view.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

namespace onedsl {

std::ptrdiff_t View::size() const noexcept {
  std::size_t n = 1;  // the product of the others may overflow if a size is 0
  for (std::ptrdiff_t axis = 0; axis < rank; ++axis) n *= static_cast<std::size_t>(shape[axis]);
  return static_cast<std::ptrdiff_t>(n);
}

std::size_t View::bytes() const noexcept {
  return static_cast<std::size_t>(size()) * size_of(type);
}

bool View::is_aligned() const noexcept {
  // Sizes are powers of 2, which a division does not know.
  return (reinterpret_cast<std::uintptr_t>(data) & (size_of(type) - 1)) == 0 || size() == 0;
}

bool View::is_c_contiguous() const noexcept {
  auto expected = static_cast<std::size_t>(item_stride);
  for (std::ptrdiff_t axis = rank; axis-- > 0;) {
    if (shape[axis] != 1 && static_cast<std::size_t>(strides[axis]) != expected) return size() == 0;
    expected *= static_cast<std::size_t>(shape[axis]);
  }
  return true;
}

bool View::same_shape(const View& other) const noexcept {
  if (type != other.type || rank != other.rank) return false;
  for (std::ptrdiff_t axis = 0; axis < rank; ++axis) {  // std::equal calls memcmp
    if (shape[axis] != other.shape[axis]) return false;
  }
  return true;
}

bool View::same_strides(const View& other) const noexcept {
  for (std::ptrdiff_t axis = 0; axis < rank; ++axis) {
    if (shape[axis] <= 1) continue;
    const bool is_same =
        item_stride == other.item_stride
            ? strides[axis] == other.strides[axis]
            : strides[axis] % item_stride == 0 && other.strides[axis] % other.item_stride == 0 &&
                  strides[axis] / item_stride == other.strides[axis] / other.item_stride;
    if (!is_same) return size() == 0;
  }
  return true;
}

bool View::same_memory(const View& other) const noexcept {
  return data == other.data && same_shape(other) && same_strides(other);
}

std::optional<Memory> View::memory() const noexcept {
  const auto item = static_cast<std::ptrdiff_t>(size_of(type));
  const std::ptrdiff_t unit = item_stride == 1 ? item : 1;
  std::ptrdiff_t before = 0;
  std::ptrdiff_t after = item;
  bool overflows = false;
  for (std::ptrdiff_t axis = 0; axis < rank; ++axis) {
    if (shape[axis] == 0) return Memory{};
    if (shape[axis] == 1) continue;
    std::ptrdiff_t offset = 0;
    std::ptrdiff_t& side = strides[axis] < 0 ? before : after;
    overflows |= __builtin_mul_overflow(strides[axis], unit, &offset);
    overflows |= __builtin_mul_overflow(offset, shape[axis] - 1, &offset);
    overflows |= __builtin_add_overflow(side, offset, &side);
  }
  if (overflows) return std::nullopt;
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  return Memory{address + static_cast<std::uintptr_t>(before),
                address + static_cast<std::uintptr_t>(after)};
}

namespace {

struct Steps {
  std::uintptr_t step, count, rest;  // rest: bytes of the faster axes
};

// Sorts axes by their steps, and merges those that continue a faster one without a gap, as the
// axes of two slices of one array do: then few indices are tried. Returns how many are left.
std::size_t merge(Steps* const axes, const std::size_t count, const std::size_t item) {
  std::sort(axes, axes + count, [](const Steps& a, const Steps& b) { return a.step < b.step; });
  std::size_t merged = 0;
  std::uintptr_t rest = item;
  for (std::size_t i = 0; i < count; ++i) {
    const auto [step, size, unused] = axes[i];
    Steps* const faster = merged == 0 ? nullptr : &axes[merged - 1];
    if (faster != nullptr && step % faster->step == 0 && step / faster->step <= faster->count) {
      faster->count += (size - 1) * (step / faster->step);
    } else {
      axes[merged++] = {step, size, rest};
    }
    rest += (size - 1) * step;
  }
  return merged;
}

// Return whether an element is in a range. `axes` have ascending steps. True if the elements of an
// axis reach its next index: then there may be very many indices to try.
bool touches_from(const std::uintptr_t at, const Steps* const axes, const std::size_t count,
                  const std::size_t item, const Memory& range) noexcept {
  if (count == 0) return at < range.end && at + item > range.begin;
  const auto [step, size, rest] = axes[count - 1];
  if (rest > step) return true;
  // Elements in the range begin before its end, and the last one of an index ends after its begin.
  std::uintptr_t i = at + rest > range.begin ? 0 : (range.begin - at - rest) / step + 1;
  for (; i < size && at + i * step < range.end; ++i) {
    if (touches_from(at + i * step, axes, count - 1, item, range)) return true;
  }
  return false;
}

}  // namespace

bool View::overlaps(const View& other) const noexcept {
  const std::optional<Memory> own = memory();
  const std::optional<Memory> its = other.memory();
  if (!own || !its || rank > max_rank || other.rank > max_rank) return true;
  if (!own->meets(*its)) return false;
  // An element i of this array and an element j of the other one are at a + 12 * i and b + 8 * j,
  // say. Their distance is that of the other's last element, L, from a + 12 * i + 8 * (L - j): the
  // elements of an array with the axes of both, 12 and 8.
  std::array<Steps, 2 * max_rank> axes;
  std::size_t count = 0;
  for (const View* const v : {this, &other}) {
    const auto unit = static_cast<std::ptrdiff_t>(v->item_stride == 1 ? size_of(v->type) : 1);
    for (std::ptrdiff_t axis = 0; axis < v->rank; ++axis) {
      if (v->shape[axis] == 1 || v->strides[axis] == 0) continue;
      axes[count++] = {magnitude(v->strides[axis] * unit),
                       static_cast<std::uintptr_t>(v->shape[axis]), 0};
    }
  }
  const std::size_t merged = merge(axes.data(), count, size_of(type));
  const Memory last{its->end - size_of(other.type), its->end};
  return touches_from(own->begin, axes.data(), merged, size_of(type), last);
}

}  // namespace onedsl
