#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "../core/operation.hpp"

namespace onedsl {

// Returns the operation with an id of signatures(), or throws std::invalid_argument.
Operation parse_operation(const std::string& id);

// Registers Operator and a function for signatures.
void bind_operator(pybind11::module_& module);
// Registers RunnableGraph, the base class of compiled graphs, and the kinds of ops.
void bind_graph(pybind11::module_& module);
// Registers the exceptions of oneDNN. In both extensions: each translates what its functions throw.
void bind_errors(pybind11::module_& module);
// Registers the functions of the run log, which call onedsl/runtime/run_log.py.
void bind_run_log(pybind11::module_& module);

}  // namespace onedsl
