#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "../plan/cache.hpp"
#include "bind_graph.hpp"
#include "call.hpp"
#include "gil.hpp"

namespace py = pybind11;

namespace onedsl {
namespace {

// ---- Signatures ----

template <class Port>
py::tuple names_of(const PortSet<Port> ports) {
  py::list names;
  ports.for_each([&](const Port port) { names.append(name_of(port)); });
  return py::tuple(names);
}

py::dict signature_info(const Operation operation) {
  const Signature& signature = signature_of(operation);
  py::list inputs;
  signature.inputs.for_each([&](const Input port) {
    inputs.append(py::make_tuple(name_of(port), is_tensor(port), signature.optional.has(port)));
  });
  py::list outputs;
  signature.outputs.for_each([&](const Output port) {
    py::object in_place = py::none();
    if (port == signature.in_place_output) in_place = py::str(name_of(signature.in_place_input));
    outputs.append(py::make_tuple(name_of(port), is_tensor(port), signature.required.has(port),
                                  std::move(in_place)));
  });
  py::dict info;
  info["inputs"] = inputs;
  info["outputs"] = outputs;
  info["all_or_none"] = names_of(signature.all_or_none);
  info["reduce_inputs"] = names_of(signature.reduce_inputs);
  return info;
}

// ---- Plans as Python objects, for inspection ----

py::object kernel_info(const Plan& plan) {
  const std::optional<native::KernelInfo> kernel = plan.kernel_info();
  if (!kernel) return py::none();
  py::dict info;
  info["lanes"] = kernel->order.lanes;
  info["columns"] = kernel->order.columns;
  info["rows"] = kernel->order.rows;
  info["row"] = kernel->order.row;
  info["segments"] = kernel->order.segments;
  info["chunks"] = kernel->order.chunks;
  info["chunk_rows"] = kernel->order.chunk_rows;
  info["threads"] = kernel->schedule.threads;
  info["own_panels"] = kernel->schedule.own_panels;
  info["panel"] = kernel->schedule.panel;
  info["block"] = kernel->schedule.block;
  info["non_temporal"] = kernel->non_temporal;
  return info;
}

}  // namespace

void bind_operator(py::module_& module) {
  module.def("signature", &signature_info, py::arg("operation"), py::pos_only());
  module.def("is_dense", &is_dense, py::arg("array"), py::pos_only());
  module.def("clear_plans", &clear_plans);
  module.def("plan_counts", &plan_counts);

  py::class_<Operator>(module, "Operator", py::is_final())
      .def(py::init([](const Operation operation, const double epsilon, const Statistics statistics,
                       const std::optional<py::ssize_t> channel_axis, std::vector<TypePair> types,
                       const std::pair<py::ssize_t, py::ssize_t> ranks, const double momentum,
                       const double clip, std::string name, std::vector<std::string> inputs,
                       std::vector<std::string> outputs) {
             return Operator({{operation, {epsilon, momentum, clip}, statistics},
                              channel_axis,
                              std::move(types),
                              ranks,
                              {std::move(name), std::move(inputs), std::move(outputs)}});
           }),
           py::arg("operation"), py::kw_only(), py::arg("epsilon"), py::arg("statistics"),
           py::arg("channel_axis"), py::arg("types"), py::arg("ranks"),
           py::arg("momentum") = Attributes{}.momentum, py::arg("clip") = Attributes{}.clip,
           py::arg("name") = "", py::arg("input_names") = py::tuple(),
           py::arg("output_names") = py::tuple())
      .def("run", &Operator::run, py::arg("inputs"), py::arg("all_outputs").noconvert(),
           py::arg("out").none(true), py::arg("onednn").noconvert(), py::pos_only())
      .def("reduce", &Operator::reduce, py::arg("inputs"), py::pos_only())
      .def("apply", &Operator::apply, py::arg("sums").noconvert(), py::arg("inputs"),
           py::arg("all_outputs").noconvert(), py::arg("out").none(true), py::pos_only());

  py::class_<Compiled>(module, "Compiled", py::is_final())
      .def(py::init([](const Operator& op, const DataType data, Compiled::Sizes shape,
                       Compiled::Sizes strides, const DataType statistics,
                       Compiled::Sizes stats_shape, const std::uint32_t given,
                       const bool all_outputs, const bool onednn) {
             // Released because oneDNN compiles for about a millisecond. Safe: making a plan uses
             // no Python objects.
             const ReleasedGil released;
             return std::make_unique<Compiled>(
                 op, Compiled::Layout{data, std::move(shape), std::move(strides)}, statistics,
                 std::move(stats_shape), given, all_outputs, onednn);
           }),
           py::arg("op"), py::kw_only(), py::arg("data"), py::arg("shape"), py::arg("strides"),
           py::arg("statistics"), py::arg("stats_shape"), py::arg("given"),
           py::arg("all_outputs").noconvert(), py::arg("onednn").noconvert())
      .def("run", &Compiled::run, py::arg("inputs"), py::arg("out").none(true), py::pos_only())
      .def_property_readonly("backend", [](const Compiled& c) { return c.plan()->backend(); })
      .def_property_readonly("implementation",
                             [](const Compiled& c) { return c.plan()->implementation(); })
      .def_property_readonly("num_threads",
                             [](const Compiled& c) { return c.plan()->key().num_threads; })
      .def_property_readonly("graph",
                             [](const Compiled& c) { return to_python(c.plan()->graph()); })
      .def_property_readonly("geometry",
                             [](const Compiled& c) {
                               const auto [outer, channels, inner] =
                                   c.plan()->key().problem.geometry;
                               return std::tuple(outer, channels, inner);
                             })
      .def_property_readonly("kernel_info",
                             [](const Compiled& c) { return kernel_info(*c.plan()); });
}

}  // namespace onedsl
