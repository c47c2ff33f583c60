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

// Returns the position of a port in a set.
template <class Port>
std::size_t position(const PortSet<Port> ports, const Port port) {
  std::size_t before = 0;
  ports.all_of([&](const Port other) {
    before += other != port ? 1 : 0;
    return other != port;
  });
  return before;
}

}  // namespace

Operator::Operator(OpSchema schema) : schema_(std::move(schema)), graph_rules_(schema_.rules) {
  schema_.rules.strided_tensors = true;
  const auto [least_rank, most_rank] = schema_.rules.ranks;
  if (least_rank < 1 || most_rank > max_rank) {
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

py::object Operator::rejected(const Rejection& rejection) const {
  const auto name = [&](const AnyPort port) {
    const auto& [op, inputs, outputs] = schema_.names;
    if (port.kind == AnyPort::none) return std::string();
    if (port.kind == AnyPort::input) {
      return inputs.at(position(signature().inputs, static_cast<Input>(port.index)));
    }
    return "out." + outputs.at(position(signature().outputs, static_cast<Output>(port.index)));
  };
  return py::cast(
      NamedRejection{name_of(rejection.reason), name(rejection.port), name(rejection.other)});
}

std::optional<Rejection> Operator::check(const CallRules& rules, Call& call,
                                         const py::tuple& inputs, const InputSet expected,
                                         const std::optional<OutputSet> outputs,
                                         const py::object& out) const {
  if (inputs.size() != expected.count()) {
    throw std::invalid_argument("onedsl._core.Operator: wrong number of inputs");
  }
  if (!outputs) return Rejection{Reason::option};
  call.first = PyTuple_GET_ITEM(inputs.ptr(), 0);
  call.results = out;
  std::optional<Rejection> rejection;
  py::ssize_t next = 0;
  const bool usable = expected.all_of([&](const Input port) {
    const py::handle object(PyTuple_GET_ITEM(inputs.ptr(), next++));
    if (object.is_none() && rules.optional.has(port)) return true;
    call.in[port] = view(object);
    if (!call.in[port]) rejection = Rejection{Reason::not_an_array, port};
    return !rejection;
  });
  if (!usable) return rejection;
  call.outputs_given = !out.is_none();
  if (call.outputs_given) {
    next = 0;
    call.outputs_match =
        PyTuple_Check(out.ptr()) &&
        static_cast<std::size_t>(PyTuple_GET_SIZE(out.ptr())) == signature().outputs.count() &&
        signature().outputs.all_of([&](const Output port) {
          const py::handle object(PyTuple_GET_ITEM(out.ptr(), next++));
          if (!outputs->has(port)) return object.is_none();
          call.out[port] = view(object);
          // The fast way to borrow memory does not show whether it may be written.
          return call.out[port] && (call.out[port]->writeable || call.out[port]->is_numpy);
        });
  }
  static_cast<OpConfig&>(call.problem) = schema_.config;
  return onedsl::check(rules, expected, *outputs, call, call.problem);
}

template <class Run>
py::object Operator::execute(const Call& call, const Sums& sums, const Run& run) const {
  Ports ports;
  ports.sums = sums;
  call.problem.inputs.for_each([&](const Input port) { ports.in[port] = call.in[port]->data; });
  const bool allocates = call.results.is_none();
  const bool is_exported = !call.src().is_numpy || call.is_converted;
  ports.outputs_given = !allocates;
  py::tuple results(allocates ? signature().outputs.count() : 0);
  std::size_t next = 0;
  signature().outputs.for_each([&](const Output port) {
    const bool is_computed = call.problem.outputs.has(port);
    if (!allocates) {
      if (is_computed) ports.out[port] = call.out[port]->data;
      return;
    }
    py::object result = py::none();
    if (is_computed) {
      const View& like = is_tensor(port) ? call.src() : call.mean();
      const bool is_dense = !is_tensor(port) || call.src_is_dense();
      py::array array = empty_like(like, is_dense, call.is_converted);
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
  if (allocates && is_exported) {
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (!results[i].is_none()) results[i] = export_array(results[i], call.first);
    }
  }
  if (!allocates) {
    const bool all_numpy =
        call.problem.outputs.all_of([&](const Output port) { return call.out[port]->is_numpy; });
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

py::object Operator::execute(Call& call, const Pass pass, const Sums& sums) const {
  call.problem.pass = pass;
  return execute(call, sums, [&](const Ports& ports) {
    native::execute(call.problem, OpenMPThreads(), ports, schema_.names);
  });
}

py::object Operator::run(const py::tuple& inputs, const py::object& outputs, const py::object& out,
                         const py::object& backend, const py::handle first) const {
  if (!equals(backend, "auto") && !equals(backend, "native")) return rejected({Reason::option});
  Call call;
  if (const auto found =
          check(schema_.rules, call, inputs, signature().inputs, parse_outputs(outputs), out)) {
    return rejected(*found);
  }
  call.use_first(first);
  return execute(call, Pass::both, {});
}

py::object Operator::apply(const DoubleVector& sums, const py::tuple& inputs,
                           const py::object& outputs, const py::object& out,
                           const py::handle first) const {
  Call call;
  if (const auto found =
          check(schema_.rules, call, inputs, signature().inputs, parse_outputs(outputs), out)) {
    return rejected(*found);
  }
  const auto part = static_cast<double>(call.problem.geometry.per_channel());
  const std::ptrdiff_t channels = call.problem.geometry.channels;
  if (sums.ndim() != 1 || sums.size() != 1 + 2 * channels) {
    return rejected({Reason::sums_channels, Input::src});
  }
  if (!(sums.data()[0] >= part)) return rejected({Reason::sums_count, Input::src});
  call.use_first(first);
  return execute(call, Pass::apply, sums_in(const_cast<double*>(sums.data()), channels));
}

py::object Operator::reduce(const py::tuple& inputs) const {
  Call call;
  if (const auto found =
          check(schema_.rules, call, inputs, signature().reduce_inputs, OutputSet(), py::none())) {
    return rejected(*found);
  }
  const std::ptrdiff_t channels = call.problem.geometry.channels;
  DoubleVector vector(1 + 2 * channels);
  execute(call, Pass::reduce, sums_in(vector.mutable_data(), channels));
  return std::move(vector);
}

py::tuple Operator::description_of(const Call& call) const {
  const View& src = call.src();
  py::tuple shape(src.rank);
  py::tuple strides(src.rank);
  for (py::ssize_t axis = 0; axis < src.rank; ++axis) {
    const auto index = static_cast<std::size_t>(axis);
    // Strides of axes of size 1 are arbitrary. Equal ones make the graphs of equal calls equal.
    shape[index] = py::int_(src.shape[axis]);
    strides[index] = py::int_(src.shape[axis] > 1 ? src.strides[axis] / src.item_stride : 1);
  }
  py::list given;
  signature().inputs.for_each(
      [&](const Input port) { given.append(call.problem.inputs.has(port)); });
  return py::make_tuple(name_of(src.type), shape, strides, name_of(call.mean().type),
                        py::tuple(given));
}

py::object Operator::describe(const py::tuple& inputs, const bool all_outputs,
                              const py::object& out) const {
  Call call;
  if (const auto found =
          check(graph_rules_, call, inputs, signature().inputs, outputs(all_outputs), out)) {
    return rejected(*found);
  }
  return description_of(call);
}

py::object Operator::run_graph(onednn::CompiledGraph& graph, const py::tuple& description,
                               const py::tuple& inputs, const bool all_outputs,
                               const py::object& out, const py::handle first) const {
  Call call;
  if (const auto found =
          check(graph_rules_, call, inputs, signature().inputs, outputs(all_outputs), out)) {
    return rejected(*found);
  }
  // Another thread may have changed an array since the graph was compiled for it.
  if (!description_of(call).equal(description)) return rejected({Reason::graph, Input::src});
  call.use_first(first);
  return execute(call, {}, [&](const Ports& ports) {
    std::vector<const void*> in;
    std::vector<void*> results;
    call.problem.inputs.for_each([&](const Input port) { in.push_back(ports.in[port]); });
    call.problem.outputs.for_each([&](const Output port) { results.push_back(ports.out[port]); });
    graph.execute(in, results);
  });
}

py::object Operator::check_shapes(const std::vector<std::optional<ArrayInfo>>& inputs) const {
  const auto found = onedsl::check_shapes(schema_.rules, schema_.config, inputs);
  return found ? rejected(*found) : py::none();
}

std::optional<Problem> Operator::problem(const View& src, const DataType statistics) const {
  Arrays arrays;
  arrays.in[Input::src] = src;
  Problem problem{schema_.config, {}, {}, {}, {}, {}};
  if (onedsl::check(schema_.rules, InputSet(Input::src), {}, arrays, problem)) return std::nullopt;
  problem.statistics_type = statistics;
  problem.inputs = signature().inputs;
  problem.outputs = signature().outputs;
  return problem;
}

}  // namespace onedsl
