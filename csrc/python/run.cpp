#include "run.hpp"

#include "dlpack.hpp"

namespace py = pybind11;

namespace onedsl {
namespace {

bool all_numpy(const PerPort<Output, std::optional<View>>& outputs) {
  for (std::size_t i = 0; i < num_ports(Output{}); ++i) {
    const std::optional<View>& v = outputs[static_cast<Output>(i)];
    if (v && !v->is_numpy) return false;
  }
  return true;
}

}  // namespace

Run prepare(const Call& call, const Signature& signature, const OutputSet outputs,
            const py::object& out) {
  Run run{{}, out};
  signature.inputs.for_each([&](const Input port) {
    if (call.in[port]) run.ports.in[port] = call.in[port]->data;
  });
  if (!out.is_none()) {
    outputs.for_each([&](const Output port) { run.ports.out[port] = call.out[port]->data; });
    return run;
  }
  py::tuple results(signature.outputs.count());
  std::size_t next = 0;
  signature.outputs.for_each([&](const Output port) {
    py::object result = py::none();
    if (outputs.has(port)) {
      py::array array = empty_like(is_tensor(port) ? call.src() : call.mean());
      run.ports.out[port] = array.mutable_data();
      result = std::move(array);
    }
    results[next++] = std::move(result);
  });
  run.results = std::move(results);
  return run;
}

py::object export_results(Run run, const Call& call, const py::object& out, const py::handle src) {
  if (!out.is_none()) {
    if (!all_numpy(call.out)) mark_written(out);
    return std::move(run.results);
  }
  if (call.src().is_numpy) return std::move(run.results);
  const auto results = py::reinterpret_borrow<py::tuple>(run.results);
  py::tuple exported(results.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    exported[i] = results[i].is_none() ? py::none() : export_array(results[i], src);
  }
  return std::move(exported);
}

}  // namespace onedsl
