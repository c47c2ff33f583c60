#include "view.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>

namespace onedsl {

std::ptrdiff_t View::size() const noexcept {
  std::ptrdiff_t n = 1;
  for (std::ptrdiff_t axis = 0; axis < rank; ++axis) n *= shape[axis];
  return n;
}

std::size_t View::bytes() const noexcept {
  return static_cast<std::size_t>(size()) * size_of(type);
}

bool View::is_aligned() const noexcept {
  // Sizes are powers of 2, which a division does not know.
  return (reinterpret_cast<std::uintptr_t>(data) & (size_of(type) - 1)) == 0 || size() == 0;
}

bool View::is_c_contiguous() const noexcept {
  std::ptrdiff_t expected = item_stride;
  for (std::ptrdiff_t axis = rank; axis-- > 0;) {
    if (shape[axis] != 1 && strides[axis] != expected) return size() == 0;
    expected *= shape[axis];
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

// Return the magnitude of a stride in bytes.
std::uintptr_t bytes_of_step(const View& v, const std::ptrdiff_t axis) noexcept {
  const std::ptrdiff_t unit = v.item_stride == 1 ? static_cast<std::ptrdiff_t>(size_of(v.type)) : 1;
  return static_cast<std::uintptr_t>(std::abs(v.strides[axis] * unit));
}

struct Steps {
  std::uintptr_t step, count, rest;  // rest: bytes of the axes after this one
};

// `axes` have descending steps.
bool touches_from(const std::uintptr_t at, const Steps* const axes, const std::ptrdiff_t count,
                  const std::size_t item, const Memory& range, int& work) noexcept {
  if (--work < 0) return true;
  if (count == 0) return at < range.end && at + item > range.begin;
  const auto [step, size, rest] = *axes;
  // Elements in the range begin before its end, and the last one of an index ends after its begin.
  std::uintptr_t i = at + rest > range.begin ? 0 : (range.begin - at - rest) / step + 1;
  for (; i < size && at + i * step < range.end; ++i) {
    if (at + i * step >= range.begin) return true;
    if (touches_from(at + i * step, axes + 1, count - 1, item, range, work)) return true;
  }
  return false;
}

}  // namespace

bool View::touches(const Memory& range) const noexcept {
  const std::optional<Memory> own = memory();
  if (!own || rank > max_rank) return true;
  if (!own->meets(range)) return false;
  const std::size_t item = size_of(type);
  std::array<Steps, max_rank> axes;
  std::ptrdiff_t count = 0;
  for (std::ptrdiff_t axis = 0; axis < rank; ++axis) {
    if (shape[axis] == 1 || strides[axis] == 0) continue;
    axes[static_cast<std::size_t>(count++)] = {bytes_of_step(*this, axis),
                                               static_cast<std::uintptr_t>(shape[axis]), 0};
  }
  std::sort(axes.begin(), axes.begin() + count,
            [](const Steps& a, const Steps& b) { return a.step > b.step; });
  std::uintptr_t rest = item;
  for (std::ptrdiff_t axis = count; axis-- > 0;) {
    Steps& own_axis = axes[static_cast<std::size_t>(axis)];
    own_axis.rest = rest;
    rest += (own_axis.count - 1) * own_axis.step;
  }
  int work = 100'000;
  return touches_from(own->begin, axes.data(), count, item, range, work);
}

bool View::alternates_with(const View& other) const noexcept {
  const std::optional<Memory> own = memory();
  const std::optional<Memory> its = other.memory();
  if (!own || !its) return false;
  if (own->begin > its->begin) return other.alternates_with(*this);
  // The bytes of a period from the first element to the end of the last one.
  const auto covered = [](const View& v, const std::uintptr_t period) {
    std::uintptr_t bytes = size_of(v.type);
    for (std::ptrdiff_t axis = 0; axis < v.rank; ++axis) {
      const std::uintptr_t step = bytes_of_step(v, axis);
      if (v.shape[axis] > 1 && step % period != 0) {
        bytes += static_cast<std::uintptr_t>(v.shape[axis] - 1) * step;
      }
    }
    return bytes;
  };
  // The period is a stride of either array.
  for (const View* const v : {this, &other}) {
    for (std::ptrdiff_t axis = 0; axis < v->rank; ++axis) {
      const std::uintptr_t period = v->shape[axis] > 1 ? bytes_of_step(*v, axis) : 0;
      if (period == 0) continue;
      const std::uintptr_t apart = (its->begin - own->begin) % period;
      if (covered(*this, period) <= apart && apart + covered(other, period) <= period) return true;
    }
  }
  return false;
}

}  // namespace onedsl
