#include "call.hpp"

#include <algorithm>
#include <stdexcept>

#include "../core/threads.hpp"
#include "../plan/cache.hpp"
#include "dlpack.hpp"
#include "gil.hpp"
#include "telling.hpp"

namespace py = pybind11;

namespace onedsl {
namespace {

std::optional<Geometry> dense(const View& v, const KeptAxes kept) {
  return dense_geometry(v.rank, v.shape, v.strides, v.item_stride,
                        static_cast<py::ssize_t>(size_of(v.type)), kept);
}

bool is_statistic(const View& v, const View& mean) {
  return v.is_c_contiguous() && v.same_layout(mean);
}

bool come_together(const Call& call, const Signature& signature) {
  std::size_t present = 0;
  signature.together.for_each([&](const Input port) { present += call.in[port] ? 1 : 0; });
  return present == 0 || present == signature.together.count();
}

// Where a run reads and writes, and what it returns.
struct Run {
  Ports ports;
  py::object results;  // a tuple with an entry for each of the op's outputs
};

Run prepare(const Call& call, const Signature& signature, const OutputSet wanted,
            const py::object& out) {
  Run run{{}, out};
  signature.inputs.for_each([&](const Input port) {
    if (call.in[port]) run.ports.in[port] = call.in[port]->data;
  });
  if (!out.is_none()) {
    wanted.for_each([&](const Output port) { run.ports.out[port] = call.out[port]->data; });
    return run;
  }
  py::tuple results(signature.outputs.count());
  std::size_t next = 0;
  signature.outputs.for_each([&](const Output port) {
    py::object result = py::none();
    if (wanted.has(port)) {
      py::array array = empty_like(is_tensor(port) ? call.src() : call.mean());
      run.ports.out[port] = array.mutable_data();
      result = std::move(array);
    }
    results[next++] = std::move(result);
  });
  run.results = std::move(results);
  return run;
}

bool all_numpy(const PerPort<Output, std::optional<View>>& outputs) {
  for (std::size_t i = 0; i < num_ports(Output{}); ++i) {
    const std::optional<View>& v = outputs[static_cast<Output>(i)];
    if (v && !v->is_numpy) return false;
  }
  return true;
}

// `src` is what the caller passed: results that were made here are to be of its kind.
py::object deliver(Run run, const Call& call, const py::object& out, const py::handle src) {
  if (!out.is_none()) {
    if (!all_numpy(call.out)) {
      py::module_::import("onedsl._arrays").attr("mark_written")(out);
    }
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

}  // namespace

InputSet Call::given() const {
  InputSet given;
  for (std::size_t i = 0; i < num_ports(Input{}); ++i) {
    if (in[static_cast<Input>(i)]) given.add(static_cast<Input>(i));
  }
  return given;
}

bool is_dense(const py::handle array, const KeptAxes kept) {
  const std::optional<View> v = view(array);
  return v && dense(*v, kept);
}

Operator::Operator(Dialect dialect) : dialect_(std::move(dialect)) {
  if (dialect_.ranks.first < 1 || dialect_.ranks.second > max_rank) {
    throw std::invalid_argument("onedsl._core.Operator: ranks must lie between 1 and 64");
  }
}

OutputSet Operator::outputs_of(const std::uint32_t bits) const {
  OutputSet all;
  OutputSet least;
  std::uint32_t bit = 1;
  std::uint32_t all_bits = 0;
  std::uint32_t least_bits = 0;
  signature().outputs.for_each([&](const Output port) {
    all_bits |= bit;
    all.add(port);
    if (signature().least.has(port)) {
      least_bits |= bit;
      least.add(port);
    }
    bit <<= 1;
  });
  if (bits == all_bits) return all;
  if (bits == least_bits) return least;
  throw std::invalid_argument("onedsl._core: the op has no such set of outputs");
}

// The axes of src that a mean like this one keeps; nothing if it does not fit src.
std::optional<KeptAxes> Operator::kept_axes(const View& src, const View& mean) const {
  if (src.rank < dialect_.ranks.first || src.rank > dialect_.ranks.second) return std::nullopt;
  if (dialect_.statistics_shape != StatisticsShape::broadcast) {
    const bool second = dialect_.statistics_shape == StatisticsShape::channel_second;
    const py::ssize_t axis = second ? 1 : src.rank - 1;
    if (axis >= src.rank || !mean.is_vector(src.shape[axis])) return std::nullopt;
    return KeptAxes{1} << axis;
  }
  if (mean.rank != src.rank) return std::nullopt;
  KeptAxes kept = 0;
  for (py::ssize_t axis = 0; axis < src.rank; ++axis) {
    if (mean.shape[axis] != src.shape[axis] && mean.shape[axis] != 1) return std::nullopt;
    if (mean.shape[axis] != 1) kept |= KeptAxes{1} << axis;
  }
  return kept;
}

std::optional<Geometry> Operator::geometry_of(const View& src, const View& mean) const {
  const auto& types = dialect_.types;
  if (std::find(types.begin(), types.end(), std::pair(src.type, mean.type)) == types.end()) {
    return std::nullopt;
  }
  const std::optional<KeptAxes> kept = kept_axes(src, mean);
  return kept ? dense(src, *kept) : std::nullopt;
}

std::optional<Call> Operator::check(const py::tuple& inputs, const OutputSet wanted,
                                    const py::object& out) const {
  if (inputs.size() != signature().inputs.count()) return std::nullopt;
  Call call;
  bool good = true;
  py::ssize_t next = 0;
  signature().inputs.for_each([&](const Input port) {
    const py::handle object(PyTuple_GET_ITEM(inputs.ptr(), next++));
    if (!good || (object.is_none() && signature().optional.has(port))) return;
    call.in[port] = view(object, dialect_.requires_grad);
    good = call.in[port].has_value();
  });
  if (!good || !come_together(call, signature())) return std::nullopt;
  const std::optional<Geometry> geometry = geometry_of(call.src(), call.mean());
  if (!geometry) return std::nullopt;
  call.geometry = *geometry;
  signature().inputs.for_each([&](const Input port) {
    const std::optional<View>& v = call.in[port];
    if (!v) return;
    good = good && (is_tensor(port) ? v->same_layout(call.src()) : is_statistic(*v, call.mean()));
  });
  if (!good || (!out.is_none() && !check_outputs(call, wanted, out))) return std::nullopt;
  return call;
}

bool Operator::check_outputs(Call& call, const OutputSet wanted, const py::object& out) const {
  if (!PyTuple_Check(out.ptr())) return false;
  if (static_cast<std::size_t>(PyTuple_GET_SIZE(out.ptr())) != signature().outputs.count()) {
    return false;
  }
  bool good = true;
  py::ssize_t next = 0;
  OutputSet seen;
  signature().outputs.for_each([&](const Output port) {
    const py::handle object(PyTuple_GET_ITEM(out.ptr(), next++));
    if (!good) return;
    if (!wanted.has(port)) {
      good = object.is_none();
      return;
    }
    call.out[port] = view(object);
    const std::optional<View>& v = call.out[port];
    good = v && v->writeable &&
           (is_tensor(port) ? v->same_layout(call.src()) : is_statistic(*v, call.mean())) &&
           !overlaps_inputs(call, port);
    seen.for_each([&](const Output other) { good = good && !v->overlaps(*call.out[other]); });
    seen.add(port);
  });
  return good;
}

bool Operator::overlaps_inputs(const Call& call, const Output port) const {
  const View& output = *call.out[port];
  bool overlaps = false;
  signature().inputs.for_each([&](const Input input) {
    const std::optional<View>& v = call.in[input];
    if (!v) return;
    const bool in_place =
        port == signature().in_place && input == signature().over && output.data == v->data;
    overlaps = overlaps || (!in_place && output.overlaps(*v));
  });
  return overlaps;
}

PlanKey Operator::key(const Geometry& geometry, const DataType data, const DataType statistics,
                      const InputSet given, const OutputSet wanted,
                      const BackendChoice backend) const {
  InputSet optional_tensors;
  signature().optional.for_each([&](const Input port) {
    if (is_tensor(port) && given.has(port)) optional_tensors.add(port);
  });
  PlanKey key;
  key.problem = {dialect_.operation,  geometry,         data,  dialect_.statistics, dialect_.spread,
                 dialect_.attributes, optional_tensors, wanted};
  key.statistics_type = statistics;
  key.backend = backend;
  key.num_threads = max_threads();
  key.fork_generation = fork_generation();
  return key;
}

py::object Operator::run(const py::tuple& inputs, const std::uint32_t wanted_bits,
                         const py::object& out, const BackendChoice backend) const {
  const OutputSet wanted = outputs_of(wanted_bits);
  const std::optional<Call> call = check(inputs, wanted, out);
  if (!call) return py::none();
  Run run = prepare(*call, signature(), wanted, out);
  Telling telling;
  {
    // Safe without the GIL: plans touch no Python object, and the arrays are kept alive by the
    // caller's frame and by `run`.
    const ReleasedGil released;
    const std::shared_ptr<const Plan> plan = find_plan(
        key(call->geometry, call->src().type, call->mean().type, call->given(), wanted, backend));
    telling.run(*plan, run.ports);
  }
  telling.tell();
  return deliver(std::move(run), *call, out, inputs[0]);
}

View Compiled::Layout::view() const {
  View result;
  result.type = type;
  result.rank = static_cast<py::ssize_t>(shape.size());
  result.shape = shape.data();
  result.strides = strides.data();
  result.item_stride = static_cast<py::ssize_t>(size_of(type));
  return result;
}

namespace {

Compiled::Sizes c_strides(const Compiled::Sizes& shape, const DataType type) {
  Compiled::Sizes strides(shape.size(), static_cast<py::ssize_t>(size_of(type)));
  for (std::size_t axis = shape.size(); axis-- > 1;) {
    if (__builtin_mul_overflow(strides[axis], std::max<py::ssize_t>(shape[axis], 1),
                               &strides[axis - 1])) {
      throw std::invalid_argument("onedsl._core.Compiled: unchecked arguments");
    }
  }
  return strides;
}

InputSet inputs_of(const Signature& signature, const std::uint32_t bits) {
  InputSet given;
  std::uint32_t bit = 1;
  signature.inputs.for_each([&](const Input port) {
    if ((bits & bit) != 0) {
      given.add(port);
    } else if (!signature.optional.has(port)) {
      throw std::invalid_argument("onedsl._core.Compiled: an input must be given");
    }
    bit <<= 1;
  });
  if (bits >= bit) throw std::invalid_argument("onedsl._core.Compiled: no such input");
  return given;
}

}  // namespace

Compiled::Compiled(Operator op, Layout src, const DataType statistics, Sizes stats_shape,
                   const std::uint32_t given, const std::uint32_t wanted,
                   const BackendChoice backend)
    : op_(std::move(op)),
      src_(std::move(src)),
      mean_{statistics, stats_shape, c_strides(stats_shape, statistics)},
      given_(inputs_of(op_.signature(), given)),
      wanted_(op_.outputs_of(wanted)) {
  if (src_.strides.size() != src_.shape.size()) {
    throw std::invalid_argument("onedsl._core.Compiled: as many strides as sizes");
  }
  const std::optional<Geometry> geometry = op_.geometry_of(src_.view(), mean_.view());
  if (!geometry) {
    throw std::invalid_argument(
        "the tensor cannot be used: its memory must be dense, and the axes that have statistics "
        "must lie in it in their own order");
  }
  plan_ = find_plan(op_.key(*geometry, src_.type, mean_.type, given_, wanted_, backend));
}

// A plan from before a fork would hang: this process has lost its threads.
std::shared_ptr<const Plan> Compiled::plan() const {
  if (plan_->key().fork_generation == fork_generation()) return plan_;
  const PlanKey& old = plan_->key();
  return find_plan(op_.key(old.problem.geometry, old.problem.data, old.statistics_type, given_,
                           wanted_, old.backend));
}

py::object Compiled::run(const py::tuple& inputs, const py::object& out) const {
  const std::optional<Call> call = op_.check(inputs, wanted_, out);
  if (!call || !call->src().same_layout(src_.view()) || !call->mean().same_layout(mean_.view())) {
    return py::none();
  }
  if (!(call->given() == given_)) return py::none();
  Run run = prepare(*call, op_.signature(), wanted_, out);
  Telling telling;
  {
    // Safe without the GIL: as in Operator::run, and this object is kept alive by its caller.
    const ReleasedGil released;
    telling.run(*plan(), run.ports);
  }
  telling.tell();
  return deliver(std::move(run), *call, out, inputs[0]);
}

}  // namespace onedsl
