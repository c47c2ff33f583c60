#include "call.hpp"

#include <algorithm>
#include <stdexcept>

#include "../core/threads.hpp"
#include "../native/execute.hpp"
#include "dlpack.hpp"
#include "gil.hpp"

namespace py = pybind11;

namespace onedsl {
namespace {

bool equals(const py::handle value, const char* const text) {
  return PyUnicode_Check(value.ptr()) && PyUnicode_CompareWithASCIIString(value.ptr(), text) == 0;
}

template <class Port>
bool fits(const Port port, const View& v, const Call& call) {
  return is_tensor(port) ? v.same_layout(call.src())
                         : v.is_c_contiguous() && v.same_layout(call.mean());
}

}  // namespace

bool is_dense(const py::handle array) {
  const std::optional<View> v = view(array);
  return v && dense_geometry(*v, {});
}

Operator::Operator(OpSchema schema) : schema_(std::move(schema)) {
  if (schema_.ranks.first < 1 || schema_.ranks.second > max_rank) {
    throw std::invalid_argument("onedsl._core.Operator: ranks must be between 1 and MAX_RANK");
  }
  if (schema_.config.statistics == Statistics::frozen &&
      schema_.config.operation != Operation::training_backward) {
    throw std::invalid_argument(
        "onedsl._core.Operator: statistics must be batch, unless operation is training_backward");
  }
  const OutputSet required = signature().required;
  std::size_t next = 0;
  signature().outputs.for_each([&](const Output port) {
    if (required == OutputSet(port)) required_ = schema_.names.outputs.at(next);
    ++next;
  });
}

std::optional<OutputSet> Operator::parse_outputs(const py::handle option) const {
  if (required_.empty()) {
    if (!PyBool_Check(option.ptr())) return std::nullopt;
    return outputs(option.ptr() == Py_True);
  }
  if (equals(option, "all")) return outputs(true);
  if (equals(option, required_.c_str())) return outputs(false);
  return std::nullopt;
}

// Returns nullopt if mean does not fit src. mean may be null unless the statistics are broadcast.
std::optional<ChannelAxes> Operator::channel_axes(const View& src, const View* const mean) const {
  if (src.rank < schema_.ranks.first || src.rank > schema_.ranks.second) return std::nullopt;
  if (schema_.channel_axis) {
    const py::ssize_t axis = *schema_.channel_axis + (*schema_.channel_axis < 0 ? src.rank : 0);
    if (axis < 0 || axis >= src.rank) return std::nullopt;
    if (mean != nullptr && !mean->is_vector(src.shape[axis])) return std::nullopt;
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
  const auto fits = [&](const TypePair& row) {
    return row.first == src.type && (mean == nullptr || row.second == mean->type);
  };
  const auto& types = schema_.types;
  if (std::none_of(types.begin(), types.end(), fits)) return std::nullopt;
  const std::optional<ChannelAxes> axes = channel_axes(src, mean);
  return axes ? dense_geometry(src, *axes) : std::nullopt;
}

bool Operator::check(Call& call, const py::tuple& inputs, const InputSet expected,
                     const OutputSet outputs, const py::object& out) const {
  if (inputs.size() != expected.count()) return false;
  call.first = PyTuple_GET_ITEM(inputs.ptr(), 0);
  call.results = out;
  call.outputs = outputs;
  py::ssize_t next = 0;
  const bool usable = expected.all_of([&](const Input port) {
    const py::handle object(PyTuple_GET_ITEM(inputs.ptr(), next++));
    if (object.is_none() && signature().optional.has(port)) return true;
    call.in[port] = view(object);
    if (call.in[port]) call.given.add(port);
    return call.in[port].has_value();
  });
  const InputSet together = call.given & signature().all_or_none;
  if (!usable || !(together == InputSet() || together == signature().all_or_none)) return false;
  const bool computes_all = outputs == signature().outputs;
  if (!computes_all && schema_.ignored && call.given.has(*schema_.ignored)) return false;
  const std::optional<View>& mean = call.in[Input::mean];
  const std::optional<Geometry> geometry = geometry_of(call.src(), mean ? &*mean : nullptr);
  if (!geometry) return false;
  call.geometry = *geometry;
  return call.given.all_of([&](const Input port) { return fits(port, *call.in[port], call); }) &&
         (out.is_none() || check_outputs(call));
}

bool Operator::check_outputs(Call& call) const {
  PyObject* const out = call.results.ptr();
  if (!PyTuple_Check(out) ||
      static_cast<std::size_t>(PyTuple_GET_SIZE(out)) != signature().outputs.count()) {
    return false;
  }
  py::ssize_t next = 0;
  return signature().outputs.all_of([&](const Output port) {
    const py::handle object(PyTuple_GET_ITEM(out, next++));
    if (!call.outputs.has(port)) return object.is_none();
    const std::optional<View> v = view(object);
    if (!v || !v->writeable || !fits(port, *v, call)) return false;
    const bool is_separate = call.outputs.all_of(
        [&](const Output other) { return !call.out[other] || !v->overlaps(*call.out[other]); });
    call.out[port] = v;
    return is_separate && call.given.all_of([&](const Input input) {
      const View& other = *call.in[input];
      const bool may_be_same =
          port == signature().in_place_output && input == signature().in_place_input;
      return (may_be_same && v->data == other.data) || !v->overlaps(other);
    });
  });
}

template <class Run>
py::object Operator::execute(const Call& call, const Sums& sums, const Run& run) const {
  Ports ports;
  ports.sums = sums;
  call.given.for_each([&](const Input port) { ports.in[port] = call.in[port]->data; });
  const bool allocates = call.results.is_none();
  ports.outputs_given = !allocates;
  py::tuple results(allocates ? signature().outputs.count() : 0);
  std::size_t next = 0;
  signature().outputs.for_each([&](const Output port) {
    const bool is_computed = call.outputs.has(port);
    if (!allocates) {
      if (is_computed) ports.out[port] = call.out[port]->data;
      return;
    }
    py::object result = py::none();
    if (is_computed) {
      py::array array = empty_like(is_tensor(port) ? call.src() : call.mean());
      ports.out[port] = array.mutable_data();
      result = std::move(array);
    }
    results[next++] = std::move(result);
  });
  {
    // Safe: neither backend uses Python objects, and the caller's frame and this one keep the
    // arrays alive.
    const ReleasedGil released;
    run(ports);
  }
  if (allocates && !call.src().is_numpy) {
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (!results[i].is_none()) results[i] = export_array(results[i], call.first);
    }
  }
  if (!allocates) {
    const bool all_numpy =
        call.outputs.all_of([&](const Output port) { return call.out[port]->is_numpy; });
    if (!all_numpy) mark_written(py::reinterpret_borrow<py::sequence>(call.results));
    results = py::reinterpret_borrow<py::tuple>(call.results);
  }
  auto* const type = reinterpret_cast<PyTypeObject*>(schema_.result.ptr());
  if (Py_TYPE(results.ptr()) == type) return std::move(results);
  // As the method _make of named tuples.
  PyObject* const made = PyTuple_Type.tp_new(type, py::make_tuple(results).ptr(), nullptr);
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

py::object Operator::execute(const Call& call, const Pass pass, const Sums& sums) const {
  const std::optional<View>& mean = call.in[Input::mean];
  Problem problem{schema_.config, call.geometry, call.src().type, mean ? mean->type : DataType::f32,
                  call.given,     call.outputs};
  problem.pass = pass;
  return execute(call, sums, [&](const Ports& ports) {
    native::execute(problem, max_threads(), ports, schema_.names);
  });
}

py::object Operator::run(const py::tuple& inputs, const py::object& outputs, const py::object& out,
                         const py::object& backend) const {
  if (!equals(backend, "auto") && !equals(backend, "native")) return py::none();
  const std::optional<OutputSet> computed = parse_outputs(outputs);
  Call call;
  if (!computed || !check(call, inputs, signature().inputs, *computed, out)) return py::none();
  return execute(call, Pass::both, {});
}

py::object Operator::apply(const DoubleVector& sums, const py::tuple& inputs,
                           const py::object& outputs, const py::object& out) const {
  const std::optional<OutputSet> computed = parse_outputs(outputs);
  Call call;
  if (!computed || !check(call, inputs, signature().inputs, *computed, out)) return py::none();
  const auto part = static_cast<double>(call.geometry.per_channel());
  const std::ptrdiff_t channels = call.geometry.channels;
  if (sums.ndim() != 1 || sums.size() != 1 + 2 * channels || !(sums.data()[0] >= part)) {
    return py::none();
  }
  return execute(call, Pass::apply, sums_in(const_cast<double*>(sums.data()), channels));
}

py::object Operator::reduce(const py::tuple& inputs) const {
  Call call;
  if (!check(call, inputs, signature().reduce_inputs, {}, py::none())) return py::none();
  DoubleVector vector(1 + 2 * call.geometry.channels);
  execute(call, Pass::reduce, sums_in(vector.mutable_data(), call.geometry.channels));
  return std::move(vector);
}

py::object Operator::describe(const py::tuple& inputs, const bool all_outputs) const {
  Call call;
  if (!check(call, inputs, signature().inputs, outputs(all_outputs), py::none())) return py::none();
  const View& src = call.src();
  py::tuple shape(src.rank);
  py::tuple strides(src.rank);
  for (py::ssize_t axis = 0; axis < src.rank; ++axis) {
    const auto index = static_cast<std::size_t>(axis);
    // Strides of axes of size 1 are arbitrary. Equal ones make the graphs of equal calls equal.
    shape[index] = src.shape[axis];
    strides[index] = src.shape[axis] > 1 ? src.strides[axis] / src.item_stride : 1;
  }
  py::list given;
  signature().inputs.for_each([&](const Input port) { given.append(call.given.has(port)); });
  return py::make_tuple(name_of(src.type), shape, strides, name_of(call.mean().type),
                        py::tuple(given));
}

py::object Operator::run_graph(onednn::CompiledGraph& graph, const py::tuple& inputs,
                               const bool all_outputs, const py::object& out) const {
  Call call;
  if (!check(call, inputs, signature().inputs, outputs(all_outputs), out)) return py::none();
  return execute(call, {}, [&](const Ports& ports) {
    std::vector<const void*> in;
    std::vector<void*> results;
    call.given.for_each([&](const Input port) { in.push_back(ports.in[port]); });
    call.outputs.for_each([&](const Output port) { results.push_back(ports.out[port]); });
    graph.execute(in, results);
  });
}

std::optional<Problem> Operator::problem(const View& src, const DataType statistics) const {
  const std::optional<Geometry> geometry = geometry_of(src, nullptr);
  if (!geometry) return std::nullopt;
  return Problem{schema_.config, *geometry,          src.type,
                 statistics,     signature().inputs, signature().outputs};
}

}  // namespace onedsl
