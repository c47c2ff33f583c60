#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <tuple>

#include "../core/threads.hpp"
#include "../native/run.hpp"
#include "../native/run_call.hpp"
#include "bindings.hpp"
#include "operator.hpp"

namespace py = pybind11;

namespace onedsl {
namespace {

// ---- Signatures ----

// Returns the fields of Signature in onedsl/tensors/ports.py, with those of Port.
py::tuple signature_info(const Signature& signature) {
  py::list inputs, outputs, all_or_none, alternatives;
  const auto kind = [](const auto port) { return is_tensor(port) ? "tensor" : "channel vector"; };
  signature.inputs.for_each([&](const Input port) {
    inputs.append(py::make_tuple(name_of(port), kind(port), signature.optional_inputs.has(port)));
  });
  signature.outputs.for_each([&](const Output port) {
    const bool in_place = port == signature.result;
    outputs.append(py::make_tuple(name_of(port), kind(port), !signature.required_outputs.has(port),
                                  in_place ? name_of(signature.in_place_input) : ""));
  });
  signature.all_or_none.for_each([&](const Input port) { all_or_none.append(name_of(port)); });
  signature.alternatives.for_each([&](const Input port) { alternatives.append(name_of(port)); });
  return py::make_tuple(inputs, outputs, py::tuple(all_or_none), py::tuple(alternatives),
                        signature.name);
}

// ---- How a call is executed, for inspection ----

// Returns nullopt for a tensor that is not dense: its memory has gaps, or elements that overlap.
// Without a channel axis, all axes are summed.
std::optional<std::tuple<std::int64_t, std::int64_t, std::int64_t>> geometry(
    const Sizes& shape, const Sizes& strides, const std::optional<py::ssize_t> channel_axis,
    const py::ssize_t item_stride) {
  if (strides.size() != shape.size()) return std::nullopt;
  const auto rank = static_cast<std::ptrdiff_t>(shape.size());
  View tensor{DataType::f16, nullptr, rank, shape.data(), strides.data()};
  tensor.item_stride = item_stride;
  ChannelAxes channels = 0;
  if (channel_axis) {
    const std::optional<std::ptrdiff_t> axis = axis_at(*channel_axis, rank);
    if (!axis || rank > max_rank) return std::nullopt;
    channels = ChannelAxes{1} << *axis;
  }
  const std::optional<Geometry> found = dense_geometry(tensor, channels);
  if (!found) return std::nullopt;
  return std::tuple(found->outer, found->channels, found->inner);
}

// Returns the geometry and, if the tensors have elements, how the kernels run a call that passes
// all inputs, computes all outputs, and is not in place, by default on the threads of the next
// call. None if they cannot run it. Strides are in elements.
py::object kernel_info(const Operator& op, const DataType data, const Sizes& shape,
                       const Sizes& strides, const DataType statistics_type,
                       const std::optional<int> num_threads) {
  if (strides.size() != shape.size()) {
    throw std::invalid_argument("kernel_info: shape and strides must have equal lengths");
  }
  const auto rank = static_cast<std::ptrdiff_t>(shape.size());
  const View src{data, nullptr, rank, shape.data(), strides.data()};
  const std::optional<Call> call = op.call_with(src, statistics_type);
  if (!call) return py::none();
  const auto [outer, channels, inner] = call->geometry;
  py::dict info;
  info["geometry"] = py::make_tuple(outer, channels, inner);
  info["implementation"] = native::implementation(call->pass);
  const int threads = num_threads.value_or(max_threads());
  info["num_threads"] = threads;
  if (call->geometry.elements() == 0) return std::move(info);
  const native::KernelInfo kernel = native::kernel_info(*call, threads);
  info["lanes"] = kernel.order.lanes;
  info["columns"] = kernel.order.columns;
  info["rows"] = kernel.order.rows;
  info["row"] = kernel.order.row;
  info["segments"] = kernel.order.segments;
  info["chunks"] = kernel.order.chunks;
  info["workers"] = kernel.schedule.workers;
  info["own"] = kernel.schedule.own;
  info["panel"] = kernel.schedule.panel;
  info["block"] = kernel.schedule.block;
  info["non_temporal"] = kernel.schedule.non_temporal;
  info["busy_share"] = kernel.busy_share;
  return std::move(info);
}

// The types of the tensors, and those that their statistics may have.
using TypeRows = std::map<DataType, std::vector<DataType>>;

// Takes an OpSchema of onedsl/operators/schema.py.
Operator make_operator(const py::object& of, std::string name, const double epsilon,
                       const bool frozen, const std::optional<py::ssize_t> channel_axis,
                       const std::optional<double> momentum, const std::string& activation,
                       const std::optional<double> parameter) {
  const Operation operation = parse_operation(of.attr("operation").cast<std::string>());
  const Signature& signature = signature_of(operation);
  const Attributes without;
  OpSchema schema{{operation,
                   {epsilon, momentum.value_or(without.momentum)},
                   frozen ? StatisticsKind::frozen : StatisticsKind::batch},
                  CallRules::of(signature),
                  LogNames{std::move(name), {}, {}},
                  of.attr("result")};
  const std::optional<Activation> found = activation_of(activation);
  if (!found) {
    throw std::invalid_argument("onedsl._core: activation must be none or one of activations()");
  }
  schema.config.attributes.set_activation(*found, parameter);
  CallRules& rules = schema.rules;
  rules.types = TypePairs();
  for (const auto& [data, statistics] : py::dict(of.attr("types")).cast<TypeRows>()) {
    for (const DataType statistic : statistics) rules.types.add({data, statistic});
  }
  rules.ranks = of.attr("ranks").cast<std::pair<py::ssize_t, py::ssize_t>>();
  rules.channel_axis = channel_axis;
  rules.optional = rules.all_or_none = InputSet();
  const auto ignored = of.attr("ignored").cast<std::string>();
  const auto all_or_none = of.attr("all_or_none").cast<std::vector<std::string>>();
  const auto ports = of.attr("inputs").cast<py::tuple>();
  std::size_t next = 0;
  signature.inputs.for_each([&](const Input port) {
    const py::object own = ports[next++];
    const std::string& input = schema.names.inputs[port] = own.attr("name").cast<std::string>();
    if (own.attr("optional").cast<bool>()) rules.optional.add(port);
    if (std::find(all_or_none.begin(), all_or_none.end(), input) != all_or_none.end()) {
      rules.all_or_none.add(port);
    }
    if (input == ignored) rules.ignored = port;
  });
  const auto results = of.attr("outputs").cast<py::tuple>();
  next = 0;
  signature.outputs.for_each([&](const Output port) {
    schema.names.outputs[port] = results[next++].attr("name").cast<std::string>();
  });
  return Operator(std::move(schema));
}

}  // namespace

Operation parse_operation(const std::string& id) {
  const std::optional<Operation> found = operation_of(id);
  if (!found) throw std::invalid_argument("onedsl._core: operation must be one of signatures()");
  return *found;
}

void bind_operator(py::module_& module) {
  module.def("activations", [] {
    py::dict all;
    for (const ActivationInfo& info : activations::all) {
      if (&info == &info_of(Activation::none)) continue;
      all[info.id] = py::make_tuple(info.name, info.parameter, info.parameter_default, info.limits);
    }
    return all;
  });
  module.def("signatures", [] {
    py::dict all;
    for (const Signature& signature : signatures::all)
      all[signature.id] = signature_info(signature);
    return all;
  });
  py::class_<NamedRejection>(module, "Rejection", py::is_final())
      .def_readonly("reason", &NamedRejection::reason)
      .def_readonly("port", &NamedRejection::port)
      .def_readonly("other", &NamedRejection::other)
      .def_readonly("to_copy", &NamedRejection::to_copy);

  module.def("geometry", &geometry, py::arg("shape"), py::arg("strides"),
             py::arg("channel_axis") = py::none(), py::arg("item_stride") = 1, py::pos_only());

  module.def("make_operator", &make_operator, py::arg("schema"), py::arg("name"),
             py::arg("epsilon"), py::arg("frozen"), py::arg("channel_axis"), py::arg("momentum"),
             py::arg("activation"), py::arg("parameter"), py::pos_only());
  py::class_<Operator>(module, "Operator", py::is_final())
      .def("run", &Operator::run, py::arg("inputs"), py::arg("all_outputs").noconvert(),
           py::arg("out").none(true), py::arg("results_like") = py::none(), py::pos_only())
      .def("reduce", &Operator::reduce, py::arg("inputs"), py::pos_only())
      .def("apply", &Operator::apply, py::arg("totals").noconvert(), py::arg("inputs"),
           py::arg("all_outputs").noconvert(), py::arg("out").none(true),
           py::arg("results_like") = py::none(), py::pos_only())
      .def("describe", &Operator::describe, py::arg("inputs"), py::arg("all_outputs").noconvert(),
           py::arg("out").none(true), py::pos_only())
      .def("run_graph", &Operator::run_graph, py::arg("graph"), py::arg("description"),
           py::arg("inputs"), py::arg("all_outputs").noconvert(), py::arg("out").none(true),
           py::arg("results_like") = py::none(), py::pos_only())
      .def("check_shapes", &Operator::check_shapes, py::arg("inputs"), py::pos_only())
      .def("kernel_info", &kernel_info, py::arg("data"), py::arg("shape"), py::arg("strides"),
           py::arg("statistics_type"), py::arg("num_threads") = py::none(), py::pos_only());
}

}  // namespace onedsl
