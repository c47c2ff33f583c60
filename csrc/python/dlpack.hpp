#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <optional>

#include "arrays.hpp"
#include "dlpack_abi.hpp"

// Exchange of arrays with other libraries by the DLPack protocol.
namespace onedsl {

// Returns a module that the program has imported, or None.
pybind11::object imported_module(const char* name);

// Returns an attribute, or None if there is none. Unlike py::getattr with a default, it does not
// hide other errors, such as a KeyboardInterrupt in a property.
pybind11::object optional_attribute(pybind11::handle object, pybind11::handle name);

// The C functions of a library, or null, and what owns them: another thread may replace the
// attribute that publishes them.
struct ExchangeFunctions {
  pybind11::object owner;
  const abi::ExchangeApi* api;
};
ExchangeFunctions exchange_functions(pybind11::handle type);

// Borrows the memory of an object by the C functions of its library, without a capsule. Returns
// nullopt if the library has none, if the CPU cannot access the memory, if the type is unsupported,
// or if it is more than its memory: PyTorch's requires_grad and lazy negation. The view is
// writeable only if all arrays of the library are.
std::optional<View> borrow(pybind11::handle object);

// Returns an object as a NumPy array, without copying. Returns nullopt as borrow() does, but uses a
// capsule if borrow() returns no writeable view: the capsule has a read-only flag.
std::optional<pybind11::array> import_array(pybind11::handle object);

// Returns the same memory as an array of the library of `like`, or the array itself if that is
// NumPy or no from_dlpack is found.
pybind11::object export_array(pybind11::array array, pybind11::handle like);

// Increments the version counters of the PyTorch tensors in `out`, after a call wrote to them:
// autograd then detects that a tensor which it saved was overwritten.
void mark_written(const pybind11::sequence& out);

// An argument for from_dlpack: NumPy's arrays do not export bf16.
struct Producer {
  pybind11::array array;

  pybind11::object capsule(bool versioned) const;
};

}  // namespace onedsl
