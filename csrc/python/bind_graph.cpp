#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "../onednn/graph.hpp"
#include "arrays.hpp"
#include "bindings.hpp"
#include "gil.hpp"

namespace py = pybind11;

namespace onedsl {
namespace {

using onednn::CallArray;
using onednn::CompiledGraph;
using onednn::Nodes;
using onednn::TensorTuples;

// Returns the memory of the arrays, which have the types and shapes of the ports; onedsl/graph has
// validated the rest.
template <class Pointer>
std::vector<Pointer> memory_of(const py::tuple& arrays, const std::vector<CallArray>& ports) {
  std::vector<Pointer> memory;
  for (const CallArray& port : ports) {
    const std::optional<View> v = view(py::object(arrays[port.index]));
    if (!v || port.type != v->type ||
        !std::equal(port.dims.begin(), port.dims.end(), v->shape, v->shape + v->rank)) {
      throw std::invalid_argument("onedsl._core.CompiledGraph: arrays must be those of the graph");
    }
    memory.push_back(v->data);
  }
  return memory;
}

// Returns the number of threads.
int run_graph(CompiledGraph& graph, const py::tuple& inputs, const py::tuple& outputs) {
  const auto in = memory_of<const void*>(inputs, graph.inputs());
  const auto out = memory_of<void*>(outputs, graph.outputs());
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
