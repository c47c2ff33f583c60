#pragma once

#include <pybind11/pybind11.h>

namespace onedsl {

// Registers CompiledGraph and graph_partitions: oneDNN's graphs in Python.
void bind_graph(pybind11::module_& module);

}  // namespace onedsl
