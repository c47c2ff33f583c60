#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <utility>

#include "../onednn/engine.hpp"
#include "../onednn/graph.hpp"
#include "arrays.hpp"
#include "bindings.hpp"
#include "gil.hpp"

// The extension that needs oneDNN.

namespace py = pybind11;

namespace onedsl {
namespace {

using onednn::CompiledGraph;
using onednn::Nodes;
using onednn::TensorTuples;

// Functions of oneDNN are safe without the GIL: they use no Python objects.
template <class Function>
auto without_gil(const Function& function) {
  const ReleasedGil released;
  return function();
}

void bind_onednn(py::module_& module) {
  module.def("version", &onednn::version);
  module.def("cpu_runtime", &onednn::cpu_runtime);
  module.def("is_of_intel", &onednn::is_of_intel);
  module.def("build_hash", &onednn::build_hash);
  module.def("cpu_isa", &onednn::cpu_isa);
  module.def("missing_isa", &onednn::missing_isa, py::arg("data"), py::pos_only());
  module.def("make_engine", [] { without_gil(&onednn::cpu_engine); });
}

void bind_graphs(py::module_& module) {
  module.def(
      "graph_partitions",
      [](const Nodes& nodes) { return without_gil([&] { return onednn::partitions_of(nodes); }); },
      py::arg("nodes"), py::pos_only());

  py::class_<CompiledGraph, RunnableGraph>(module, "CompiledGraph", py::is_final())
      .def_property_readonly("num_threads", &CompiledGraph::num_threads)
      .def("partitions",
           [](CompiledGraph& self) { return without_gil([&] { return self.partitions(); }); });
  module.def(
      "compile_graph",
      [](Nodes nodes, const TensorTuples& inputs, const TensorTuples& outputs,
         CompiledGraph::Constants constants, const int num_threads) {
        return std::make_unique<CompiledGraph>(std::move(nodes), inputs, outputs,
                                               std::move(constants), num_threads);
      },
      py::call_guard<ReleasedGil>(), py::arg("nodes"), py::arg("inputs"), py::arg("outputs"),
      py::arg("constants"), py::arg("num_threads"), py::pos_only());
}

}  // namespace
}  // namespace onedsl

// Needs no GIL: the state that threads share has a mutex of its own.
PYBIND11_MODULE(_onednn, module, pybind11::mod_gil_not_used()) {
  module.doc() = "onedsl's extension that calls oneDNN. Private: use the package onedsl.";
  onedsl::bind_errors(module);
  onedsl::bind_onednn(module);
  onedsl::bind_graphs(module);
}
