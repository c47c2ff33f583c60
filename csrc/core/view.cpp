#include "view.hpp"

#include <algorithm>
#include <cstdint>

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
  return reinterpret_cast<std::uintptr_t>(data) % size_of(type) == 0 || size() == 0;
}

bool View::is_vector(const std::ptrdiff_t length) const noexcept {
  return rank == 1 && shape[0] == length && (length <= 1 || strides[0] == item_stride);
}

bool View::is_c_contiguous() const noexcept {
  if (size() == 0) return true;
  std::ptrdiff_t expected = item_stride;
  for (std::ptrdiff_t axis = rank; axis-- > 0;) {
    if (shape[axis] != 1 && strides[axis] != expected) return false;
    expected *= shape[axis];
  }
  return true;
}

bool View::same_shape(const View& other) const noexcept {
  return type == other.type && rank == other.rank && std::equal(shape, shape + rank, other.shape);
}

bool View::same_layout(const View& other) const noexcept {
  if (!same_shape(other)) return false;
  if (size() == 0) return true;
  for (std::ptrdiff_t axis = 0; axis < rank; ++axis) {
    if (shape[axis] > 1 &&
        (strides[axis] % item_stride != 0 || other.strides[axis] % other.item_stride != 0 ||
         strides[axis] / item_stride != other.strides[axis] / other.item_stride)) {
      return false;
    }
  }
  return true;
}

bool View::overlaps(const View& other) const noexcept {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const auto other_begin = reinterpret_cast<std::uintptr_t>(other.data);
  return bytes() != 0 && other.bytes() != 0 && begin < other_begin + other.bytes() &&
         other_begin < begin + bytes();
}

}  // namespace onedsl
