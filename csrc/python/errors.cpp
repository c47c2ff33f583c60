#include "../onednn/errors.hpp"

#include <pybind11/pybind11.h>

#include <exception>

#include "bindings.hpp"

namespace py = pybind11;

namespace onedsl {
namespace {

// The exception classes are defined in Python, where one can have two base classes and a docstring.
// Never destroyed, because static objects are destroyed after the interpreter.
py::handle onednn_error;
py::handle unsupported_error;
py::handle out_of_memory_error;

py::handle type_of(const onednn::OneDNNError& error) {
  if (dynamic_cast<const onednn::UnsupportedError*>(&error) != nullptr) return unsupported_error;
  if (dynamic_cast<const onednn::OutOfMemoryError*>(&error) != nullptr) return out_of_memory_error;
  return onednn_error;
}

}  // namespace

void bind_errors(py::module_& module) {
  module.def(
      "set_error_types",
      [](const py::type& onednn, const py::type& unsupported, const py::type& out_of_memory) {
        onednn_error = onednn.inc_ref();
        unsupported_error = unsupported.inc_ref();
        out_of_memory_error = out_of_memory.inc_ref();
      },
      py::arg("onednn_error"), py::arg("unsupported_error"), py::arg("out_of_memory_error"),
      py::pos_only());
  py::register_local_exception_translator([](const std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const onednn::OneDNNError& error) {
      const py::handle type = type_of(error);
      PyErr_SetObject(type.ptr(), type(error.what(), error.status).ptr());
    }
  });
}

}  // namespace onedsl
