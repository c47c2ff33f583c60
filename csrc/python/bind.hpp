#pragma once

#include <pybind11/pybind11.h>

// What module.cpp puts together; one function a binding file.
namespace onedsl {

void bind_errors(pybind11::module_& module);
void bind_types(pybind11::module_& module);
void bind_dlpack(pybind11::module_& module);
void bind_operator(pybind11::module_& module);
void bind_statistics(pybind11::module_& module);
void bind_capabilities(pybind11::module_& module);
void bind_torch(pybind11::module_& module);
void bind_xla(pybind11::module_& module);

}  // namespace onedsl
