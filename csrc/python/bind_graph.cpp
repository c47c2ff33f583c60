#include "bind_graph.hpp"

#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "../core/threads.hpp"
#include "../onednn/fork_guard.hpp"
#include "../onednn/graph.hpp"
#include "arrays.hpp"
#include "gil.hpp"

namespace py = pybind11;

namespace onedsl {
namespace {

using onednn::Nodes;
using onednn::NodeView;
using onednn::PartitionView;
using onednn::TensorView;

// ---- Graphs as tuples ----

using Sizes = std::vector<std::int64_t>;
using TensorTuple = std::tuple<std::size_t, std::string, Sizes, Sizes, std::string, std::string>;
using TensorTuples = std::vector<TensorTuple>;
using NodeTuple = std::tuple<std::size_t, std::string, std::string, decltype(NodeView::attributes),
                             TensorTuples, TensorTuples>;
using PartitionTuple =
    std::tuple<std::size_t, std::vector<std::size_t>, bool, TensorTuples, TensorTuples>;

TensorTuples to_tuples(const std::vector<TensorView>& tensors) {
  TensorTuples tuples;
  for (const TensorView& t : tensors) {
    tuples.emplace_back(t.id, t.type, t.dims, t.strides, t.layout, t.property);
  }
  return tuples;
}

std::vector<PartitionTuple> to_tuples(const std::vector<PartitionView>& partitions) {
  std::vector<PartitionTuple> tuples;
  for (const PartitionView& part : partitions) {
    tuples.emplace_back(part.id, part.nodes, part.supported, to_tuples(part.inputs),
                        to_tuples(part.outputs));
  }
  return tuples;
}

std::vector<TensorView> tensors_of(const TensorTuples& tuples) {
  std::vector<TensorView> tensors;
  for (const auto& [id, type, dims, strides, layout, property] : tuples) {
    if (dims.size() != strides.size()) {
      throw std::invalid_argument("onedsl._core: dims and strides must have equal lengths");
    }
    tensors.push_back({id, type, dims, strides, layout, property});
  }
  return tensors;
}

Nodes nodes_of(const std::vector<NodeTuple>& tuples) {
  Nodes nodes;
  for (const auto& [id, name, kind, attributes, inputs, outputs] : tuples) {
    nodes.push_back({id, name, kind, attributes, tensors_of(inputs), tensors_of(outputs)});
  }
  return nodes;
}

// ---- Compiled graphs ----

// Adds the memory of an array for each tensor, by the tensor's id. Returns whether all are usable.
bool add_memory(std::map<std::size_t, void*>& memory, const py::tuple& arrays,
                const std::vector<TensorView>& tensors) {
  if (arrays.size() != tensors.size()) return false;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::optional<View> v = view(py::object(arrays[i]));
    if (!v) return false;
    memory[tensors[i].id] = v->data;
  }
  return true;
}

// Runs a graph of one op on arrays for its inputs and outputs, which onedsl/graph has validated.
// Returns false for what is no array.
bool run_graph(onednn::CompiledGraph& graph, const py::tuple& inputs, const py::tuple& outputs) {
  std::map<std::size_t, void*> memory;
  const NodeView& op = graph.nodes().at(0);
  if (!add_memory(memory, inputs, op.inputs) || !add_memory(memory, outputs, op.outputs)) {
    return false;
  }
  // Safe without the GIL: oneDNN uses no Python objects, and the caller's tuples keep the arrays
  // alive.
  const ReleasedGil released;
  graph.execute([&](const std::size_t id) { return memory.at(id); });
  return true;
}

}  // namespace

py::object to_python(const Nodes& nodes) {
  std::vector<NodeTuple> tuples;
  for (const NodeView& node : nodes) {
    tuples.emplace_back(node.id, node.name, node.kind, node.attributes, to_tuples(node.inputs),
                        to_tuples(node.outputs));
  }
  return py::cast(tuples);
}

void bind_graph(py::module_& module) {
  module.def(
      "graph_partitions",
      [](const std::vector<NodeTuple>& nodes) {
        // Safe without the GIL: oneDNN uses no Python objects.
        const ReleasedGil released;
        const onednn::ForkGuard guard;
        return to_tuples(onednn::partitions_of(nodes_of(nodes)));
      },
      py::arg("nodes"), py::pos_only());

  using onednn::CompiledGraph;
  py::class_<CompiledGraph>(module, "CompiledGraph", py::is_final())
      .def(py::init([](const std::vector<NodeTuple>& nodes) {
             // Safe without the GIL: oneDNN uses no Python objects.
             const ReleasedGil released;
             return std::make_unique<CompiledGraph>(nodes_of(nodes), max_threads());
           }),
           py::arg("nodes"), py::pos_only())
      .def("run", &run_graph, py::arg("inputs"), py::arg("outputs"), py::pos_only())
      .def_property_readonly("partitions",
                             [](const CompiledGraph& g) { return to_tuples(g.partitions()); })
      .def_property_readonly("num_threads", &CompiledGraph::num_threads);
}

}  // namespace onedsl
