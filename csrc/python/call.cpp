#include "call.hpp"

#include <algorithm>
#include <stdexcept>

#include "../plan/cache.hpp"
#include "dlpack.hpp"
#include "gil.hpp"

namespace py = pybind11;

namespace onedsl {
namespace {

bool is_statistic(const View& v, const View& mean) {
  return v.is_c_contiguous() && v.same_layout(mean);
}

bool has_all_or_none(const Call& call, const Signature& signature) {
  std::size_t present = 0;
  signature.all_or_none.for_each([&](const Input port) { present += call.in[port] ? 1 : 0; });
  return present == 0 || present == signature.all_or_none.count();
}

bool all_numpy(const PerPort<Output, std::optional<View>>& outputs) {
  for (std::size_t i = 0; i < num_ports(Output{}); ++i) {
    const std::optional<View>& v = outputs[static_cast<Output>(i)];
    if (v && !v->is_numpy) return false;
  }
  return true;
}

}  // namespace

InputSet Call::given() const {
  InputSet given;
  for (std::size_t i = 0; i < num_ports(Input{}); ++i) {
    if (in[static_cast<Input>(i)]) given.add(static_cast<Input>(i));
  }
  return given;
}

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

bool is_dense(const py::handle array) {
  const std::optional<View> v = view(array);
  return v && dense_geometry(*v, {});
}

Operator::Operator(OpSchema schema) : schema_(std::move(schema)) {
  if (schema_.ranks.first < 1 || schema_.ranks.second > max_rank) {
    throw std::invalid_argument("onedsl._core.Operator: ranks must be between 1 and MAX_RANK");
  }
}

// Returns nullopt if mean does not fit src. mean may be null unless the statistics are broadcast.
std::optional<ChannelAxes> Operator::channel_axes(const View& src, const View* const mean) const {
  if (src.rank < schema_.ranks.first || src.rank > schema_.ranks.second) return std::nullopt;
  if (schema_.statistics_shape != StatisticsShape::broadcast) {
    const bool second = schema_.statistics_shape == StatisticsShape::channel_second;
    const py::ssize_t axis = second ? 1 : src.rank - 1;
    if (axis >= src.rank || (mean != nullptr && !mean->is_vector(src.shape[axis]))) {
      return std::nullopt;
    }
    return ChannelAxes{1} << axis;
  }
  if (mean == nullptr || mean->rank != src.rank) return std::nullopt;
  ChannelAxes axes = 0;
  for (py::ssize_t axis = 0; axis < src.rank; ++axis) {
    if (mean->shape[axis] != src.shape[axis] && mean->shape[axis] != 1) return std::nullopt;
    if (mean->shape[axis] != 1) axes |= ChannelAxes{1} << axis;
  }
  return axes;
}

std::optional<Geometry> Operator::geometry_of(const View& src, const View* const mean) const {
  const auto fits = [&](const std::pair<DataType, DataType>& row) {
    return row.first == src.type && (mean == nullptr || row.second == mean->type);
  };
  const auto& types = schema_.types;
  if (std::none_of(types.begin(), types.end(), fits)) return std::nullopt;
  const std::optional<ChannelAxes> axes = channel_axes(src, mean);
  return axes ? dense_geometry(src, *axes) : std::nullopt;
}

std::optional<Call> Operator::check(const py::tuple& inputs, const InputSet expected,
                                    const OutputSet outputs, const py::object& out) const {
  if (inputs.size() != expected.count()) return std::nullopt;
  Call call;
  bool valid = true;
  py::ssize_t next = 0;
  expected.for_each([&](const Input port) {
    const py::handle object(PyTuple_GET_ITEM(inputs.ptr(), next++));
    if (!valid || (object.is_none() && signature().optional.has(port))) return;
    call.in[port] = view(object);
    valid = call.in[port].has_value();
  });
  if (!valid || !has_all_or_none(call, signature())) return std::nullopt;
  const std::optional<View>& mean = call.in[Input::mean];
  const std::optional<Geometry> geometry = geometry_of(call.src(), mean ? &*mean : nullptr);
  if (!geometry) return std::nullopt;
  call.geometry = *geometry;
  signature().inputs.for_each([&](const Input port) {
    const std::optional<View>& v = call.in[port];
    if (!v) return;
    valid = valid && (is_tensor(port) ? v->same_layout(call.src()) : is_statistic(*v, call.mean()));
  });
  if (!valid || (!out.is_none() && !check_outputs(call, outputs, out))) return std::nullopt;
  return call;
}

bool Operator::check_outputs(Call& call, const OutputSet outputs, const py::object& out) const {
  if (!PyTuple_Check(out.ptr())) return false;
  if (static_cast<std::size_t>(PyTuple_GET_SIZE(out.ptr())) != signature().outputs.count()) {
    return false;
  }
  bool valid = true;
  py::ssize_t next = 0;
  OutputSet seen;
  signature().outputs.for_each([&](const Output port) {
    const py::handle object(PyTuple_GET_ITEM(out.ptr(), next++));
    if (!valid) return;
    if (!outputs.has(port)) {
      valid = object.is_none();
      return;
    }
    call.out[port] = view(object);
    const std::optional<View>& v = call.out[port];
    valid = v && v->writeable &&
            (is_tensor(port) ? v->same_layout(call.src()) : is_statistic(*v, call.mean())) &&
            !overlaps_inputs(call, port);
    seen.for_each([&](const Output other) { valid = valid && !v->overlaps(*call.out[other]); });
    seen.add(port);
  });
  return valid;
}

bool Operator::overlaps_inputs(const Call& call, const Output port) const {
  const View& output = *call.out[port];
  bool overlaps = false;
  signature().inputs.for_each([&](const Input input) {
    const std::optional<View>& v = call.in[input];
    if (!v) return;
    const bool in_place = port == signature().in_place_output &&
                          input == signature().in_place_input && output.data == v->data;
    overlaps = overlaps || (!in_place && output.overlaps(*v));
  });
  return overlaps;
}

py::object Operator::compute(const py::tuple& inputs, const bool all_outputs, const py::object& out,
                             const BackendChoice backend, const DoubleVector* const sums) const {
  const OutputSet outputs = this->outputs(all_outputs);
  const std::optional<Call> call = check(inputs, signature().inputs, outputs, out);
  if (!call) return py::none();
  Run run = prepare(*call, signature(), outputs, out);
  if (sums != nullptr) {
    const auto part = static_cast<double>(call->geometry.per_channel());
    const std::ptrdiff_t channels = call->geometry.channels;
    if (sums->ndim() != 1 || sums->size() != 1 + 2 * channels || !(sums->data()[0] >= part)) {
      return py::none();
    }
    run.ports.sums = sums_in(const_cast<double*>(sums->data()), channels);
  }
  execute(*call, outputs, backend, sums != nullptr ? Pass::apply : Pass::both, run.ports);
  return export_results(std::move(run), *call, out, inputs[0]);
}

py::object Operator::run(const py::tuple& inputs, const bool all_outputs, const py::object& out,
                         const BackendChoice backend) const {
  return compute(inputs, all_outputs, out, backend, nullptr);
}

py::object Operator::apply(const DoubleVector& sums, const py::tuple& inputs,
                           const bool all_outputs, const py::object& out) const {
  return compute(inputs, all_outputs, out, BackendChoice::automatic, &sums);
}

py::object Operator::reduce(const py::tuple& inputs) const {
  const OutputSet nothing;
  const std::optional<Call> call = check(inputs, signature().reduce_inputs, nothing, py::none());
  if (!call) return py::none();
  DoubleVector vector(1 + 2 * call->geometry.channels);
  Run run = prepare(*call, signature(), nothing, py::none());
  run.ports.sums = sums_in(vector.mutable_data(), call->geometry.channels);
  execute(*call, nothing, BackendChoice::automatic, Pass::reduce, run.ports);
  return std::move(vector);
}

void Operator::execute(const Call& call, const OutputSet outputs, const BackendChoice backend,
                       const Pass pass, const Ports& ports) const {
  const std::optional<View>& mean = call.in[Input::mean];
  const DataType statistics = mean ? mean->type : DataType::f32;
  const PlanKey key = make_key(schema_.config, call.geometry, call.src().type, statistics,
                               call.given(), outputs, backend, pass);
  // Safe without the GIL: plans use no Python objects, and the caller's frame and its Run keep the
  // arrays alive.
  const ReleasedGil released;
  onedsl::run(*find_plan(key), ports, schema_.names);
}

}  // namespace onedsl
