#include "operator.hpp"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "../core/threads.hpp"
#include "../native/run_call.hpp"
#include "dlpack.hpp"
#include "gil.hpp"

namespace py = pybind11;

namespace onedsl {
namespace {

// Returns the array whose library is that of the results: the first input, unless another is given.
py::handle like_of(const py::tuple& inputs, const py::handle results_like = py::none()) {
  return results_like.is_none() ? py::handle(PyTuple_GET_ITEM(inputs.ptr(), 0)) : results_like;
}

// Returns a new array of PyTorch, or of NumPy if that is null, and its memory. It has the shape and
// strides of `like`, or these strides in elements if there are some.
std::pair<py::object, void*> new_array(const View& like, const std::vector<std::ptrdiff_t>& strides,
                                       const bool aligned, const PyTorch* const pytorch) {
  View dense = like;
  if (!strides.empty()) {
    dense.strides = strides.data();
    dense.item_stride = 1;
  }
  if (pytorch != nullptr) {
    py::object tensor = empty_tensor(*pytorch, dense);
    const auto address = call_method(tensor, py::str("data_ptr")).cast<std::uintptr_t>();
    if (address == 0 && dense.size() > 0) {
      throw std::runtime_error("PyTorch returned a tensor without memory, as in FakeTensorMode");
    }
    return {std::move(tensor), reinterpret_cast<void*>(address)};
  }
  py::array array = empty_like(dense, aligned);
  void* const data = array.mutable_data();
  return {std::move(array), data};
}

}  // namespace

Operator::Operator(OpSchema schema) : schema_(std::move(schema)), graph_rules_(schema_.rules) {
  schema_.rules.pitched_tensors = true;
  const auto [lowest, highest] = schema_.rules.ranks;
  if (lowest < 1 || highest > max_rank) {
    throw std::invalid_argument("onedsl._core.Operator: ranks must be between 1 and MAX_RANK");
  }
  if (schema_.config.statistics_kind == StatisticsKind::frozen &&
      schema_.config.operation != Operation::training_backward) {
    throw std::invalid_argument(
        "onedsl._core.Operator: statistics must be batch, unless operation is training_backward");
  }
}

py::object Operator::rejected(const Rejection& rejection) const {
  const auto name = [&](const AnyPort port) {
    const auto& [op, inputs, outputs] = schema_.names;
    if (port.kind == AnyPort::none) return std::string();
    if (port.kind == AnyPort::input) return inputs[static_cast<Input>(port.index)];
    return "out." + outputs[static_cast<Output>(port.index)];
  };
  NamedRejection named{
      name_of(rejection.reason), name(rejection.port), name(rejection.other), {}, {}, {}};
  rejection.to_copy.for_each([&](const Input port) { named.to_copy.push_back(name(port)); });
  rejection.to_copy_back.for_each(
      [&](const Output port) { named.to_copy_back.push_back(name(port)); });
  named.strides = rejection.strides;
  return py::cast(std::move(named));
}

void Operator::mark_copied(Call& call, const py::tuple& names) const {
  for (const py::handle each : names) {
    const auto name = each.cast<std::string>();
    signature().inputs.for_each([&](const Input port) {
      if (schema_.names.inputs[port] == name) call.copied_inputs.add(port);
    });
    signature().outputs.for_each([&](const Output port) {
      if ("out." + schema_.names.outputs[port] == name) call.copied_outputs.add(port);
    });
  }
}

std::optional<Rejection> Operator::fill(PythonCall& call, const CallRules& rules,
                                        const py::tuple& inputs, const OutputSet outputs,
                                        const py::object& out) const {
  if (inputs.size() != call.inputs.count()) {
    throw std::invalid_argument("onedsl._core.Operator: wrong number of inputs");
  }
  call.outputs = outputs;
  std::optional<Rejection> rejection;
  py::ssize_t next = 0;
  const bool usable = call.inputs.all_of([&](const Input port) {
    const py::handle object(PyTuple_GET_ITEM(inputs.ptr(), next++));
    if (object.is_none() && rules.optional.has(port)) return true;
    call.in[port] = view(object);
    if (call.in[port]) {
      call.sizes.keep(*call.in[port]);
    } else {
      rejection = Rejection{Reason::not_an_array, port};
    }
    return !rejection;
  });
  if (!usable) return rejection;
  call.outputs_described = !out.is_none();
  if (call.outputs_described) {
    next = 0;
    call.outputs_match =
        PyTuple_Check(out.ptr()) &&
        static_cast<std::size_t>(PyTuple_GET_SIZE(out.ptr())) == signature().outputs.count() &&
        signature().outputs.all_of([&](const Output port) {
          const py::handle object(PyTuple_GET_ITEM(out.ptr(), next++));
          if (!outputs.has(port)) return object.is_none();
          call.out[port] = view(object);
          if (call.out[port]) call.sizes.keep(*call.out[port]);
          // The fast way to borrow memory does not show whether it may be written.
          return call.out[port] && (call.out[port]->writeable || call.out[port]->is_numpy);
        });
  }
  return check(rules, call);
}

template <class Run>
py::object Operator::execute(const Call& call, const py::handle results_like, const py::object& out,
                             const Totals& totals, const Run& run) const {
  Pointers memory = pointers_of(call);
  memory.totals = totals;
  memory.cold_outputs = call.outputs_described;
  const bool is_converted = !py::isinstance<py::array>(results_like);
  const PyTorch* const pytorch =
      is_converted && !call.outputs_described ? pytorch_of(results_like) : nullptr;
  py::tuple results(call.outputs_described ? 0 : signature().outputs.count());
  if (!call.outputs_described) {
    std::size_t next = 0;
    signature().outputs.for_each([&](const Output port) {
      py::object result = py::none();
      if (call.outputs.has(port)) {
        const View& like = is_tensor(port) ? call.src() : call.mean();
        const Sizes strides = is_tensor(port) ? call.dense_strides : Sizes();
        std::tie(result, memory.out[port]) = new_array(like, strides, is_converted, pytorch);
      }
      results[next++] = std::move(result);
    });
  }
  {
    // Safe: neither backend uses Python objects, and the caller's frame and this one keep the
    // arrays alive.
    const ReleasedGil released;
    run(memory);
  }
  if (call.outputs_described) {
    const bool all_numpy =
        call.outputs.all_of([&](const Output port) { return call.out[port]->is_numpy; });
    if (!all_numpy) mark_written(py::reinterpret_borrow<py::sequence>(out));
    results = py::reinterpret_borrow<py::tuple>(out);
  } else if (is_converted) {
    for (std::size_t i = 0; i < results.size(); ++i) {
      results[i] = export_array(results[i], results_like);
    }
  }
  auto* const type = reinterpret_cast<PyTypeObject*>(schema_.result.ptr());
  if (Py_TYPE(results.ptr()) == type) return std::move(results);
  // As the method _make of named tuples.
  PyObject* const made = PyTuple_Type.tp_new(type, py::make_tuple(results).ptr(), nullptr);
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

py::object Operator::execute(const Call& call, const py::handle results_like, const py::object& out,
                             const Totals& totals) const {
  return execute(call, results_like, out, totals, [&](const Pointers& memory) {
    native::run_call(call, memory, OpenMPThreads(), &schema_.names);
  });
}

py::object Operator::run(const py::tuple& inputs, const bool all_outputs, const py::object& out,
                         const py::handle results_like, const py::tuple& copied) const {
  PythonCall call(schema_.config);
  mark_copied(call, copied);
  if (const auto found = fill(call, schema_.rules, inputs, outputs(all_outputs), out)) {
    return rejected(*found);
  }
  return execute(call, like_of(inputs, results_like), out);
}

py::object Operator::apply(const DoubleVector& totals, const py::tuple& inputs,
                           const bool all_outputs, const py::object& out,
                           const py::handle results_like, const py::tuple& copied) const {
  PythonCall call(schema_.config);
  mark_copied(call, copied);
  call.pass = Pass::apply;
  if (const auto found = fill(call, schema_.rules, inputs, outputs(all_outputs), out)) {
    return rejected(*found);
  }
  const auto part = static_cast<double>(call.geometry.per_channel());
  const std::ptrdiff_t channels = call.geometry.channels;
  if (totals.ndim() != 1 || totals.size() != 1 + 2 * channels) {
    return rejected({Reason::totals_channels, Input::src});
  }
  if (!(totals.data()[0] >= part)) return rejected({Reason::totals_count, Input::src});
  return execute(call, like_of(inputs, results_like), out,
                 totals_in(const_cast<double*>(totals.data()), channels));
}

py::object Operator::reduce(const py::tuple& inputs, const py::tuple& copied) const {
  PythonCall call(schema_.config);
  mark_copied(call, copied);
  call.pass = Pass::reduce;
  call.inputs = signature().reduce_inputs;
  if (const auto found = fill(call, schema_.rules, inputs, OutputSet(), py::none())) {
    return rejected(*found);
  }
  const std::ptrdiff_t channels = call.geometry.channels;
  DoubleVector vector(1 + 2 * channels);
  execute(call, like_of(inputs), py::none(), totals_in(vector.mutable_data(), channels));
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
  signature().inputs.for_each([&](const Input port) { given.append(call.given.has(port)); });
  return py::make_tuple(name_of(src.type), shape, strides, name_of(call.mean().type),
                        py::tuple(given));
}

py::object Operator::describe(const py::tuple& inputs, const bool all_outputs,
                              const py::object& out) const {
  PythonCall call(schema_.config);
  if (const auto found = fill(call, graph_rules_, inputs, outputs(all_outputs), out)) {
    return rejected(*found);
  }
  return call.geometry.elements() == 0 ? py::none() : py::object(description_of(call));
}

py::object Operator::run_graph(RunnableGraph& graph, const py::tuple& description,
                               const py::tuple& inputs, const bool all_outputs,
                               const py::object& out, const py::handle results_like) const {
  PythonCall call(schema_.config);
  if (const auto found = fill(call, graph_rules_, inputs, outputs(all_outputs), out)) {
    return rejected(*found);
  }
  if (!description_of(call).equal(description)) return rejected({Reason::graph, Input::src});
  return execute(call, like_of(inputs, results_like), out, {}, [&](const Pointers& memory) {
    std::vector<const void*> in;
    std::vector<void*> results;
    call.given.for_each([&](const Input port) { in.push_back(memory.in[port]); });
    call.outputs.for_each([&](const Output port) { results.push_back(memory.out[port]); });
    onedsl::run(graph, in, results);
  });
}

py::object Operator::check_shapes(const std::vector<std::optional<ArrayInfo>>& inputs) const {
  const auto found = onedsl::check_shapes(schema_.rules, schema_.config, inputs);
  return found ? rejected(*found) : py::none();
}

std::optional<Call> Operator::call_with(const View& src, const DataType statistics_type) const {
  Call call(schema_.config);
  call.inputs = InputSet(Input::src);
  call.in[Input::src] = src;
  call.outputs = signature().required_outputs;
  if (check(schema_.rules, call)) return std::nullopt;
  call.outputs = signature().outputs;
  call.statistics_type = statistics_type;
  call.given = signature().inputs - InputSet(Input::dst);  // it replaces the residual
  return call;
}

}  // namespace onedsl
