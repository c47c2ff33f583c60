#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "../onednn/graph.hpp"
#include "arrays.hpp"
#include "bindings.hpp"
#include "gil.hpp"

namespace py = pybind11;

namespace onedsl {
namespace {

using onednn::CompiledGraph;
using onednn::Nodes;
using onednn::Port;
using onednn::TensorTuples;

// Appends the memory of each array. Returns whether the arrays have the types and shapes of the
// ports; onedsl/graph has validated the rest.
template <class Pointer>
bool append_memory(std::vector<Pointer>& memory, const py::tuple& arrays,
                   const std::vector<Port>& ports) {
  if (arrays.size() != ports.size()) return false;
  for (const Port& port : ports) {
    const std::optional<View> v = view(py::object(arrays[port.index]));
    if (!v || port.type != v->type ||
        !std::equal(port.dims.begin(), port.dims.end(), v->shape, v->shape + v->rank)) {
      return false;
    }
    memory.push_back(v->data);
  }
  return true;
}

// Returns the number of threads, or 0 if the arrays are rejected.
int run_graph(CompiledGraph& graph, const py::tuple& inputs, const py::tuple& outputs) {
  std::vector<const void*> in;
  std::vector<void*> out;
  if (!append_memory(in, inputs, graph.inputs()) || !append_memory(out, outputs, graph.outputs())) {
    return 0;
  }
  // Safe without the GIL: oneDNN uses no Python objects, and the caller's tuples keep the arrays
  // alive.
  const ReleasedGil released;
  return graph.execute(in, out);
}

}  // namespace

void bind_graph(py::module_& module) {
  // Functions of oneDNN are safe without the GIL: they use no Python objects.
  const py::call_guard<ReleasedGil> without_gil;
  module.def("graph_partitions", &onednn::partitions_of, without_gil, py::arg("nodes"),
             py::pos_only());

  py::class_<CompiledGraph>(module, "CompiledGraph", py::is_final())
      .def(py::init([](Nodes nodes, const TensorTuples& inputs, const TensorTuples& outputs,
                       CompiledGraph::Constants constants, const int num_threads) {
             const ReleasedGil released;
             return std::make_unique<CompiledGraph>(std::move(nodes), inputs, outputs,
                                                    std::move(constants), num_threads);
           }),
           py::arg("nodes"), py::arg("inputs"), py::arg("outputs"), py::arg("constants"),
           py::arg("num_threads"), py::pos_only())
      .def_property_readonly("num_threads", &CompiledGraph::num_threads)
      .def("run", &run_graph, py::arg("inputs"), py::arg("outputs"), py::pos_only())
      .def("partitions", &CompiledGraph::partitions, without_gil);
}

}  // namespace onedsl
