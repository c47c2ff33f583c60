#pragma once

#include <pybind11/pybind11.h>

#include "../onednn/graph_view.hpp"

// oneDNN's graphs in Python.
namespace onedsl {

// Returns the ops as tuples, as _core.pyi describes them.
pybind11::object to_python(const onednn::Nodes& nodes);

// Registers CompiledGraph and graph_partitions.
void bind_graph(pybind11::module_& module);

}  // namespace onedsl
