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
  return overlap(data, bytes(), other.data, other.bytes());
}

bool overlap(const void* const a, const std::size_t a_bytes, const void* const b,
             const std::size_t b_bytes) noexcept {
  const auto a_begin = reinterpret_cast<std::uintptr_t>(a);
  const auto b_begin = reinterpret_cast<std::uintptr_t>(b);
  return a_bytes != 0 && b_bytes != 0 && a_begin < b_begin + b_bytes && b_begin < a_begin + a_bytes;
}

}  // namespace onedsl
