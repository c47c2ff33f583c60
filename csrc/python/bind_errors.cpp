#include <pybind11/pybind11.h>

#include <exception>

#include "../core/errors.hpp"
#include "bind.hpp"

namespace py = pybind11;

namespace onedsl {
namespace {

// The classes are Python's (onedsl/runtime/errors.py), where they can inherit twice and be
// documented.
void raise(const char* const name, const OneDNNError& error) {
  const py::object type = py::module_::import("onedsl.runtime.errors").attr(name);
  PyErr_SetObject(type.ptr(), type(error.what(), error.status()).ptr());
}

}  // namespace

void bind_errors(py::module_&) {
  py::register_local_exception_translator([](const std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const UnsupportedError& error) {
      raise("UnsupportedError", error);
    } catch (const OneDNNError& error) {
      raise("OneDNNError", error);
    }
  });
}

}  // namespace onedsl
