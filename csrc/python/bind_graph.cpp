#include "bind_graph.hpp"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

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

// Appends the memory of each array. Returns whether the arrays have the tensors' types and numbers
// of elements; onedsl/graph has validated the rest.
template <class Pointer>
bool append_memory(std::vector<Pointer>& memory, const py::tuple& arrays,
                   const std::vector<TensorView>& tensors) {
  if (arrays.size() != tensors.size()) return false;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::optional<View> v = view(py::object(arrays[i]));
    const std::vector<std::int64_t>& dims = tensors[i].dims;
    if (!v || tensors[i].type != name_of(v->type) ||
        !std::equal(dims.begin(), dims.end(), v->shape, v->shape + v->rank)) {
      return false;
    }
    memory.push_back(v->data);
  }
  return true;
}

bool run_graph(onednn::CompiledGraph& graph, const py::tuple& inputs, const py::tuple& outputs) {
  std::vector<const void*> in;
  std::vector<void*> out;
  if (!append_memory(in, inputs, graph.inputs()) || !append_memory(out, outputs, graph.outputs())) {
    return false;
  }
  // Safe without the GIL: oneDNN uses no Python objects, and the caller's tuples keep the arrays
  // alive.
  const ReleasedGil released;
  graph.execute(in, out);
  return true;
}

}  // namespace

void bind_graph(py::module_& module) {
  module.def(
      "graph_partitions",
      [](const std::vector<NodeTuple>& nodes) {
        // Safe without the GIL: oneDNN uses no Python objects.
        const ReleasedGil released;
        return to_tuples(onednn::partitions_of(nodes_of(nodes)));
      },
      py::arg("nodes"), py::pos_only());

  using onednn::CompiledGraph;
  py::class_<CompiledGraph>(module, "CompiledGraph", py::is_final())
      .def(py::init([](const std::vector<NodeTuple>& nodes, const TensorTuples& inputs,
                       const TensorTuples& outputs, CompiledGraph::Constants constants,
                       const int num_threads) {
             // Safe without the GIL: oneDNN uses no Python objects.
             const ReleasedGil released;
             return std::make_unique<CompiledGraph>(nodes_of(nodes), tensors_of(inputs),
                                                    tensors_of(outputs), std::move(constants),
                                                    num_threads);
           }),
           py::arg("nodes"), py::arg("inputs"), py::arg("outputs"), py::arg("constants"),
           py::arg("num_threads"), py::pos_only())
      .def("run", &run_graph, py::arg("inputs"), py::arg("outputs"), py::pos_only())
      .def("partitions", [](CompiledGraph& g) {
        // Safe without the GIL: oneDNN uses no Python objects.
        const ReleasedGil released;
        return to_tuples(g.partitions());
      });
}

}  // namespace onedsl
