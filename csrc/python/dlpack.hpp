#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <optional>
#include <vector>

#include "arrays.hpp"

// Exchange of arrays with other libraries by the DLPack protocol.
namespace onedsl {

// Returns a module that the program has imported, or None.
pybind11::object imported_module(const char* name);

// Returns an attribute, or None if there is none. Unlike py::getattr with a default, it does not
// hide other errors, such as a KeyboardInterrupt in a property.
pybind11::object optional_attribute(pybind11::handle object, pybind11::handle name);

// Calls a method without arguments, in less time than pybind11.
pybind11::object call_method(pybind11::handle object, pybind11::handle name);

// Functions of PyTorch, and the options of empty_strided by DataType.
struct PyTorch {
  pybind11::object increment_version, empty_strided;
  std::vector<pybind11::dict> options;
};

// Returns null if an object is not a tensor of PyTorch.
const PyTorch* pytorch_of(pybind11::handle object);

// Borrows the memory of an object by the C functions of its library, without a capsule. Returns
// nullopt if the library has none, if the CPU cannot access the memory, if the type is unsupported,
// or if it is more than its memory: PyTorch's requires_grad and lazy negation. The view is
// writeable only if all arrays of the library are.
std::optional<View> borrow(pybind11::handle object);

// Returns an object as a NumPy array, without copying; by a capsule if borrow() returns no
// writeable view, because the capsule has a read-only flag. For an object that is no usable array,
// returns the exception that its library raised, or a reason: "no_dlpack", "requires_grad",
// "negative", "device", "rank", "type", "memory" (a storage that is too small) or "invalid".
pybind11::object import_array(pybind11::handle object);

// Returns the memory of a NumPy array as an array of the library of `like`. Returns the object
// itself if it is none, if that library is NumPy, or if no from_dlpack is found.
pybind11::object export_array(pybind11::object array, pybind11::handle like);

// Returns an uninitialized tensor, in memory of PyTorch, with the type, shape and strides of
// `like`.
pybind11::object empty_tensor(const PyTorch& pytorch, const View& like);

// Increments the version counters of the PyTorch tensors in `out`, after a call wrote to them:
// autograd then detects that a tensor which it saved was overwritten.
void mark_written(const pybind11::sequence& out);

// An argument for from_dlpack: NumPy's arrays do not export bf16.
struct Producer {
  pybind11::array array;

  pybind11::object capsule(bool versioned) const;
};

}  // namespace onedsl
