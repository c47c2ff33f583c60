#pragma once

#include <cstddef>

#include "types.hpp"

namespace onedsl {

// An array of one of the supported types, of any library. Borrowed: valid as long as the array.
struct View {
  DataType type = DataType::f32;
  char* data = nullptr;
  std::ptrdiff_t rank = 0;
  const std::ptrdiff_t* shape = nullptr;
  const std::ptrdiff_t* strides = nullptr;
  std::ptrdiff_t item_stride = 1;  // of adjacent items: NumPy counts bytes, other libraries items
  bool writeable = false;
  bool is_numpy = false;

  std::ptrdiff_t size() const noexcept;
  std::size_t bytes() const noexcept;  // of a dense array
  bool is_aligned() const noexcept;    // to its items; empty arrays are, as in NumPy
  bool is_vector(std::ptrdiff_t length) const noexcept;  // one axis, no gaps
  bool is_c_contiguous() const noexcept;
  bool same_shape(const View& other) const noexcept;   // and type
  bool same_layout(const View& other) const noexcept;  // type, shape and strides
  bool overlaps(const View& other) const noexcept;     // for dense arrays only
};

// Return whether two ranges of bytes overlap. Empty ones overlap nothing.
bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) noexcept;

}  // namespace onedsl
