#include <stdexcept>

#include "../core/threads.hpp"
#include "../plan/cache.hpp"
#include "call.hpp"
#include "gil.hpp"

namespace py = pybind11;

namespace onedsl {

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

InputSet inputs_of(const Signature& signature, std::uint32_t bits) {
  InputSet given;
  signature.inputs.for_each([&](const Input port) {
    if ((bits & 1U) != 0) given.add(port);
    bits >>= 1;
  });
  return given;
}

}  // namespace

Compiled::Compiled(Operator op, Layout src, const DataType statistics, Sizes stats_shape,
                   const std::uint32_t given, const bool all_outputs, const BackendChoice backend)
    : op_(std::move(op)),
      src_(std::move(src)),
      mean_{statistics, stats_shape,
            c_strides(static_cast<py::ssize_t>(stats_shape.size()), stats_shape.data(),
                      static_cast<py::ssize_t>(size_of(statistics)))},
      given_(inputs_of(op_.signature(), given)),
      outputs_(op_.outputs(all_outputs)) {
  if (src_.strides.size() != src_.shape.size()) {
    throw std::invalid_argument("onedsl._core.Compiled: shape and strides must have equal lengths");
  }
  const View mean = mean_.view();
  const std::optional<Geometry> geometry = op_.geometry_of(src_.view(), &mean);
  if (!geometry) {
    throw std::invalid_argument(
        "spec must have the axes where stats_shape is not 1 adjacent in memory, in their order in "
        "shape. A direct call copies other tensors");
  }
  plan_ = find_plan(
      make_key(op_.schema().config, *geometry, src_.type, mean_.type, given_, outputs_, backend));
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
  const std::optional<Call> call = op_.check(inputs, op_.signature().inputs, outputs_, out);
  if (!call || !call->src().same_layout(src_.view()) || !call->mean().same_layout(mean_.view()) ||
      !(call->given() == given_)) {
    return py::none();
  }
  Run run = prepare(*call, op_.signature(), outputs_, out);
  {
    const ReleasedGil released;  // safe as in Operator::execute
    onedsl::run(*plan(), run.ports, op_.schema().names);
  }
  return export_results(std::move(run), *call, out, inputs[0]);
}

}  // namespace onedsl
