#pragma once

#include <pybind11/numpy.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "types.hpp"

// NumPy arrays as the core wants them, and nothing about batch normalization.
namespace onedsl {

// An array that is exactly a numpy.ndarray of one of the three types, native byte order, aligned.
// Borrowed: valid while the array is.
struct View {
  DataType type = DataType::f32;
  char* data = nullptr;
  pybind11::ssize_t rank = 0;
  const pybind11::ssize_t* shape = nullptr;
  const pybind11::ssize_t* strides = nullptr;  // in bytes
  bool writeable = false;

  pybind11::ssize_t size() const noexcept;
  bool is_vector(pybind11::ssize_t length) const noexcept;  // one axis, no gaps
  bool is_c_contiguous() const noexcept;
  bool same_layout(const View& other) const noexcept;  // type, shape and strides

  // Dense memory only. Empty arrays overlap nothing.
  bool overlaps(const View& other) const noexcept;
};

// Nothing for any other object.
std::optional<View> view(pybind11::handle object);

pybind11::dtype dtype_of(DataType type);

// Uninitialized, with the shape and strides of `like`, which must be dense.
pybind11::array empty_like(const View& like);

}  // namespace onedsl
