#pragma once

#include <pybind11/numpy.h>

#include <optional>

#include "../core/types.hpp"

// Arrays as the core wants them, and nothing about batch normalization.
namespace onedsl {

// An array of one of the three types, native byte order, aligned. Borrowed: valid while the array
// is.
struct View {
  DataType type = DataType::f32;
  char* data = nullptr;
  pybind11::ssize_t rank = 0;
  const pybind11::ssize_t* shape = nullptr;
  const pybind11::ssize_t* strides = nullptr;
  pybind11::ssize_t item_stride = 0;  // between neighbours: NumPy's strides are in bytes
  bool writeable = false;
  bool is_numpy = false;

  pybind11::ssize_t size() const noexcept;
  bool is_vector(pybind11::ssize_t length) const noexcept;  // one axis, no gaps
  bool is_c_contiguous() const noexcept;
  bool same_layout(const View& other) const noexcept;  // type, shape and strides

  // Dense memory only. Empty arrays overlap nothing.
  bool overlaps(const View& other) const noexcept;
};

// Whether a tensor of PyTorch's may be part of a graph (requires_grad): only if the caller sees to
// the graph.
enum class RequiresGrad { rejected, allowed };

// Of a numpy.ndarray, no subclass, or of a tensor that can be borrowed. Nothing for anything else.
std::optional<View> view(pybind11::handle object,
                         RequiresGrad requires_grad = RequiresGrad::rejected);

// The same memory as a NumPy array, which keeps `owner` alive.
pybind11::array array_over(const View& v, pybind11::handle owner);

// Uninitialized, with the shape and strides of `like`, which must be dense.
pybind11::array empty_like(const View& like);

}  // namespace onedsl
