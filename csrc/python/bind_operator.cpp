#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "../plan/cache.hpp"
#include "bind.hpp"
#include "call.hpp"
#include "gil.hpp"
#include "run_log.hpp"
#include "views.hpp"

namespace py = pybind11;

namespace onedsl {
namespace {

py::tuple port_names(const Operation operation) {
  const Signature& signature = signature_of(operation);
  const auto names = [](const auto ports, const auto& all) {
    py::list list;
    ports.for_each([&](const auto port) { list.append(all[static_cast<std::size_t>(port)]); });
    return py::tuple(list);
  };
  return py::make_tuple(names(signature.inputs, input_names),
                        names(signature.outputs, output_names));
}

py::tuple names_of(const InputSet inputs) {
  py::list names;
  inputs.for_each(
      [&](const Input port) { names.append(input_names[static_cast<std::size_t>(port)]); });
  return py::tuple(names);
}

py::dict signature_row(const Operation operation) {
  const Signature& signature = signature_of(operation);
  py::list inputs;
  signature.inputs.for_each([&](const Input port) {
    inputs.append(py::make_tuple(input_names[static_cast<std::size_t>(port)], is_tensor(port),
                                 signature.optional.has(port)));
  });
  py::list outputs;
  signature.outputs.for_each([&](const Output port) {
    const auto in_place = static_cast<std::size_t>(signature.in_place_input);
    outputs.append(py::make_tuple(
        output_names[static_cast<std::size_t>(port)], is_tensor(port), signature.required.has(port),
        port == signature.in_place_output ? py::object(py::str(input_names[in_place]))
                                          : py::none()));
  });
  py::dict row;
  row["inputs"] = inputs;
  row["outputs"] = outputs;
  row["all_or_none"] = names_of(signature.all_or_none);
  row["reduce_inputs"] = names_of(signature.reduce_inputs);
  return row;
}

}  // namespace

void bind_operator(py::module_& module) {
  module.def("ports", &port_names, py::arg("operation"), py::pos_only());
  module.def("signature", &signature_row, py::arg("operation"), py::pos_only());
  module.def("is_dense", &is_dense, py::arg("array"), py::arg("kept"), py::pos_only());
  module.def("clear_plans", &clear_plans);
  module.def("enable_logging", &enable_logging, py::arg("on"), py::pos_only());
  module.def("plan_counts", [] {
    const PlanCount count = plan_count();
    return py::make_tuple(count.plans, count.bytes);
  });

  py::class_<Operator>(module, "Operator", py::is_final())
      .def(
          py::init([](const Operation operation, const double epsilon, const Statistics statistics,
                      const StatisticsShape statistics_shape,
                      std::vector<std::pair<DataType, DataType>> types,
                      const std::pair<py::ssize_t, py::ssize_t> ranks,
                      const VarianceKind variance_kind, const bool allow_requires_grad,
                      const double momentum, const double clip) {
            return Operator({operation,
                             {epsilon, momentum, clip},
                             statistics,
                             variance_kind,
                             statistics_shape,
                             std::move(types),
                             ranks,
                             allow_requires_grad ? RequiresGrad::allowed : RequiresGrad::rejected});
          }),
          py::arg("operation"), py::kw_only(), py::arg("epsilon"), py::arg("statistics"),
          py::arg("statistics_shape"), py::arg("types"), py::arg("ranks"),
          py::arg("variance_kind") = VarianceKind::variance, py::arg("allow_requires_grad") = false,
          py::arg("momentum") = Attributes{}.momentum, py::arg("clip") = Attributes{}.clip)
      .def("run", &Operator::run, py::arg("inputs"), py::arg("all_outputs").noconvert(),
           py::arg("out").none(true), py::arg("backend"), py::pos_only())
      .def("reduce", &Operator::reduce, py::arg("inputs"), py::pos_only())
      .def("apply", &Operator::apply, py::arg("vector").noconvert(), py::arg("inputs"),
           py::arg("all_outputs").noconvert(), py::arg("out").none(true), py::pos_only());

  py::class_<Compiled>(module, "Compiled", py::is_final())
      .def(py::init([](const Operator& op, const DataType data, Compiled::Sizes shape,
                       Compiled::Sizes strides, const DataType statistics,
                       Compiled::Sizes stats_shape, const std::uint32_t given,
                       const bool all_outputs, const BackendChoice backend) {
             // Safe without the GIL: making a plan touches no Python object, and takes oneDNN a
             // millisecond.
             const ReleasedGil released;
             return std::make_unique<Compiled>(
                 op, Compiled::Layout{data, std::move(shape), std::move(strides)}, statistics,
                 std::move(stats_shape), given, all_outputs, backend);
           }),
           py::arg("op"), py::kw_only(), py::arg("data"), py::arg("shape"), py::arg("strides"),
           py::arg("statistics"), py::arg("stats_shape"), py::arg("given"),
           py::arg("all_outputs").noconvert(), py::arg("backend"))
      .def("run", &Compiled::run, py::arg("inputs"), py::arg("out").none(true), py::pos_only())
      .def_property_readonly("backend", [](const Compiled& c) { return c.plan()->backend(); })
      .def_property_readonly("implementation",
                             [](const Compiled& c) { return c.plan()->implementation(); })
      .def_property_readonly("num_threads",
                             [](const Compiled& c) { return c.plan()->key().num_threads; })
      .def_property_readonly("graph", [](const Compiled& c) { return graph_rows(*c.plan()); })
      .def_property_readonly("geometry", [](const Compiled& c) { return geometry_row(*c.plan()); })
      .def_property_readonly("kernel_info",
                             [](const Compiled& c) { return kernel_info_row(*c.plan()); });
}

}  // namespace onedsl
