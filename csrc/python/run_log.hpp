#pragma once

#include <pybind11/pybind11.h>

namespace onedsl {

// Registers the functions of the run log, which call onedsl/runtime/run_log.py.
void bind_run_log(pybind11::module_& module);

}  // namespace onedsl
