#pragma once

#include <pybind11/numpy.h>

#include <optional>

#include "../core/types.hpp"

// Views of arrays. Nothing here is specific to batch normalization.
namespace onedsl {

// An aligned array of one of the three types in native byte order. Borrowed: valid as long as the
// array.
struct View {
  DataType type = DataType::f32;
  char* data = nullptr;
  pybind11::ssize_t rank = 0;
  const pybind11::ssize_t* shape = nullptr;
  const pybind11::ssize_t* strides = nullptr;
  pybind11::ssize_t item_stride = 0;  // of adjacent items: NumPy counts bytes, DLPack items
  bool writeable = false;
  bool is_numpy = false;

  pybind11::ssize_t size() const noexcept;
  bool is_vector(pybind11::ssize_t length) const noexcept;  // one axis, no gaps
  bool is_c_contiguous() const noexcept;
  bool same_layout(const View& other) const noexcept;  // type, shape and strides

  // For dense arrays only. Empty arrays overlap nothing.
  bool overlaps(const View& other) const noexcept;
};

// Whether PyTorch tensors with requires_grad are valid: only if the caller handles autograd.
enum class RequiresGrad { rejected, allowed };

// Returns a view of a numpy.ndarray (not of a subclass) or of a tensor that can be borrowed;
// nullopt for anything else.
std::optional<View> view(pybind11::handle object,
                         RequiresGrad requires_grad = RequiresGrad::rejected);

// Returns a NumPy array of the same memory, which keeps `owner` alive.
pybind11::array array_over(const View& v, pybind11::handle owner);

// Returns an uninitialized array with the shape and strides of `like`, which must be dense.
pybind11::array empty_like(const View& like);

}  // namespace onedsl
