#include <pybind11/stl.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "../core/check.hpp"
#include "../onednn/graph.hpp"
#include "../onednn/runnable_graph.hpp"
#include "arrays.hpp"
#include "bindings.hpp"
#include "gil.hpp"

namespace py = pybind11;

namespace onedsl {
namespace {

// Why a call is rejected: the reason, and the indices of the array and of the one it overlaps.
using Rejected = std::tuple<const char*, std::size_t, std::size_t>;

// Returns why an array is rejected.
std::optional<Reason> reason_against(const View& v, const GraphArray& port, const bool is_output) {
  const auto rank = static_cast<std::ptrdiff_t>(port.dims.size());
  const View like{port.type, nullptr, rank, port.dims.data(), port.strides.data()};
  if (v.type != like.type) return Reason::like_type;
  if (!v.same_shape(like)) return Reason::like_shape;
  if (!v.same_strides(like)) return Reason::layout;
  if (!v.is_aligned()) return Reason::not_aligned;
  return is_output && !v.writeable ? std::optional(Reason::read_only) : std::nullopt;
}

// Runs a graph on arrays, the inputs first. in_place has the index of the input whose memory an
// array may be. Returns the number of threads, or why the call is rejected.
std::variant<int, Rejected> run_on(RunnableGraph& graph, const py::tuple& arrays,
                                   const std::vector<std::optional<std::size_t>>& in_place) {
  const std::size_t inputs = graph.inputs().size();
  std::vector<View> views;
  std::vector<std::unique_ptr<KeptSizes<1>>> sizes;
  std::vector<const void*> in;
  std::vector<void*> out;
  for (std::size_t i = 0; i < inputs + graph.outputs().size(); ++i) {
    const bool is_output = i >= inputs;
    sizes.push_back(std::make_unique<KeptSizes<1>>());
    std::optional<View> v = view(py::object(arrays[i]));
    if (!v) throw std::invalid_argument("onedsl._core.RunnableGraph: arrays must be of NumPy");
    sizes.back()->keep(*v);
    const GraphArray& port = is_output ? graph.outputs()[i - inputs] : graph.inputs()[i];
    if (const auto reason = reason_against(*v, port, is_output))
      return Rejected{name_of(*reason), i, i};
    for (std::size_t other = 0; is_output && other < i; ++other) {
      const bool may_share = in_place.at(i) == other && v->same_memory(views[other]);
      if (!may_share && v->overlaps(views[other])) {
        return Rejected{name_of(Reason::overlap), i, other};
      }
    }
    views.push_back(*v);
    is_output ? out.push_back(v->data) : in.push_back(v->data);
  }
  // Safe without the GIL: oneDNN uses no Python objects, and the caller's tuple keeps the arrays
  // alive.
  const ReleasedGil released;
  return run(graph, in, out);
}

}  // namespace

void bind_graph(py::module_& module) {
  module.def("graph_op_kinds", [] {
    py::dict all;
    for (const auto& [name, kind] : onednn::op_kinds) {
      all[name] = py::make_tuple(kind.operation, kind.inputs, kind.outputs, kind.attributes);
    }
    return all;
  });
  py::class_<RunnableGraph>(module, "RunnableGraph")
      .def(
          "run",
          [](RunnableGraph& self, const py::tuple& arrays,
             const std::vector<std::optional<std::size_t>>& in_place) {
            return run_on(self, arrays, in_place);
          },
          py::arg("arrays"), py::arg("in_place"), py::pos_only());
}

}  // namespace onedsl
