#pragma once

#include <pybind11/numpy.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "types.hpp"

// Arrays as the core wants them, and nothing about batch normalization.
namespace onedsl {

// An array of one of the three types, native byte order, aligned. Borrowed: valid while the array
// is and, where another library's memory has been viewed as a NumPy array, while `viewed` is.
struct View {
  DataType type = DataType::f32;
  char* data = nullptr;
  pybind11::ssize_t rank = 0;
  const pybind11::ssize_t* shape = nullptr;
  const pybind11::ssize_t* strides = nullptr;  // in bytes
  bool writeable = false;
  pybind11::object viewed;  // null for NumPy's own arrays

  pybind11::ssize_t size() const noexcept;
  bool is_vector(pybind11::ssize_t length) const noexcept;  // one axis, no gaps
  bool is_c_contiguous() const noexcept;
  bool same_layout(const View& other) const noexcept;  // type, shape and strides

  // Dense memory only. Empty arrays overlap nothing.
  bool overlaps(const View& other) const noexcept;
};

// Nothing for any other object, subclasses of numpy.ndarray among them.
std::optional<View> view(pybind11::handle object);

pybind11::dtype dtype_of(DataType type);

// Uninitialized, with the shape and strides of `like`, which must be dense. In whole cache lines
// where another library will take it over: JAX copies what is not.
pybind11::array empty_like(const View& like);

}  // namespace onedsl
