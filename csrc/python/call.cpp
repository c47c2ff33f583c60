#include "call.hpp"

#include <algorithm>
#include <stdexcept>

#include "../core/threads.hpp"
#include "../plan/cache.hpp"
#include "dlpack.hpp"
#include "gil.hpp"

namespace py = pybind11;

namespace onedsl {
namespace {

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

template <class Find>
py::object Operator::execute(const Call& call, const Sums& sums, const Find& find) const {
  Ports ports;
  ports.sums = sums;
  call.given.for_each([&](const Input port) { ports.in[port] = call.in[port]->data; });
  const bool allocates = call.results.is_none();
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
    // Safe: plans use no Python objects, and the caller's frame and this one keep the arrays alive.
    const ReleasedGil released;
    onedsl::run(*find(), ports, schema_.names);
  }
  if (!allocates) {
    const bool all_numpy =
        call.outputs.all_of([&](const Output port) { return call.out[port]->is_numpy; });
    if (!all_numpy) mark_written(py::reinterpret_borrow<py::sequence>(call.results));
    return py::reinterpret_borrow<py::object>(call.results);
  }
  if (call.src().is_numpy) return std::move(results);
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!results[i].is_none()) results[i] = export_array(results[i], call.first);
  }
  return std::move(results);
}

py::object Operator::execute(const Call& call, const bool onednn, const Pass pass,
                             const Sums& sums) const {
  const std::optional<View>& mean = call.in[Input::mean];
  const PlanKey key =
      make_key(schema_.config, call.geometry, call.src().type, mean ? mean->type : DataType::f32,
               call.given, call.outputs, onednn, pass);
  return execute(call, sums, [&] { return find_plan(key); });
}

py::object Operator::run(const py::tuple& inputs, const bool all_outputs, const py::object& out,
                         const bool onednn) const {
  Call call;
  if (!check(call, inputs, signature().inputs, outputs(all_outputs), out)) return py::none();
  return execute(call, onednn, Pass::both, {});
}

py::object Operator::apply(const DoubleVector& sums, const py::tuple& inputs,
                           const bool all_outputs, const py::object& out) const {
  Call call;
  if (!check(call, inputs, signature().inputs, outputs(all_outputs), out)) return py::none();
  const auto part = static_cast<double>(call.geometry.per_channel());
  const std::ptrdiff_t channels = call.geometry.channels;
  if (sums.ndim() != 1 || sums.size() != 1 + 2 * channels || !(sums.data()[0] >= part)) {
    return py::none();
  }
  return execute(call, false, Pass::apply, sums_in(const_cast<double*>(sums.data()), channels));
}

py::object Operator::reduce(const py::tuple& inputs) const {
  Call call;
  if (!check(call, inputs, signature().reduce_inputs, {}, py::none())) return py::none();
  DoubleVector vector(1 + 2 * call.geometry.channels);
  execute(call, false, Pass::reduce, sums_in(vector.mutable_data(), call.geometry.channels));
  return std::move(vector);
}

// ---- Compiled operators ----

View Compiled::Layout::view() const {
  View result;
  result.type = type;
  result.rank = static_cast<py::ssize_t>(shape.size());
  result.shape = shape.data();
  result.strides = strides.data();
  result.item_stride = static_cast<py::ssize_t>(size_of(type));
  return result;
}

Compiled::Compiled(Operator op, Layout src, const DataType statistics, Sizes stats_shape,
                   std::uint32_t given, const bool all_outputs, const bool onednn)
    : op_(std::move(op)),
      src_(std::move(src)),
      mean_{statistics, stats_shape,
            c_strides(static_cast<py::ssize_t>(stats_shape.size()), stats_shape.data(),
                      static_cast<py::ssize_t>(size_of(statistics)))},
      outputs_(op_.outputs(all_outputs)) {
  if (src_.strides.size() != src_.shape.size()) {
    throw std::invalid_argument("onedsl._core.Compiled: shape and strides must have equal lengths");
  }
  op_.signature().inputs.for_each([&](const Input port) {
    if ((given & 1U) != 0) given_.add(port);
    given >>= 1;
  });
  const View mean = mean_.view();
  const std::optional<Geometry> geometry = op_.geometry_of(src_.view(), &mean);
  if (!geometry) {
    throw std::invalid_argument(
        "spec must have the axes where stats_shape is not 1 adjacent in memory, in their order in "
        "shape. A direct call copies other tensors");
  }
  plan_ = find_plan(
      make_key(op_.schema().config, *geometry, src_.type, mean_.type, given_, outputs_, onednn));
}

// A plan from before a fork must not be run: it would wait for threads that the child does not
// have.
std::shared_ptr<const Plan> Compiled::plan() const {
  PlanKey key = plan_->key();
  if (key.fork_generation == fork_generation()) return plan_;
  key.fork_generation = fork_generation();
  key.num_threads = max_threads();
  return find_plan(key);
}

py::object Compiled::run(const py::tuple& inputs, const py::object& out) const {
  Call call;
  if (!op_.check(call, inputs, op_.signature().inputs, outputs_, out) ||
      !call.src().same_layout(src_.view()) || !call.mean().same_layout(mean_.view()) ||
      !(call.given == given_)) {
    return py::none();
  }
  return op_.execute(call, {}, [this] { return plan(); });
}

}  // namespace onedsl
