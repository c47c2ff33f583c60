#include "task.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace onedsl::native {
namespace {

Tensors tensors_of(const Ports& ports) {
  const auto statistic = [&](const Input port) {
    return static_cast<const float*>(ports.in[port]);
  };
  const auto sum = [&](const Output port) { return static_cast<float*>(ports.out[port]); };
  Tensors tensors;
  tensors.src = ports.in[Input::src];
  tensors.diff_dst = ports.in[Input::diff_dst];
  tensors.residual = ports.in[Input::residual];
  tensors.dst = ports.in[Input::dst];
  tensors.mean = statistic(Input::mean);
  tensors.variance = statistic(Input::variance);
  tensors.gamma = statistic(Input::gamma);
  tensors.beta = statistic(Input::beta);
  void* const dst = ports.out[Output::dst];
  tensors.result = dst != nullptr ? dst : ports.out[Output::diff_src];
  tensors.diff_residual = ports.out[Output::diff_residual];
  tensors.diff_gamma = sum(Output::diff_gamma);
  tensors.diff_beta = sum(Output::diff_beta);
  tensors.running_mean = sum(Output::running_mean);
  tensors.running_variance = sum(Output::running_variance);
  tensors.batch_mean = sum(Output::batch_mean);
  tensors.batch_variance = sum(Output::batch_variance);
  return tensors;
}

Samples samples_of(const SummationOrder& order) {
  const Index plane = order.inner;
  const Index elements = order.outer * plane;
  Samples samples;
  samples.count = std::min(elements, Samples::most);
  for (Index i = 0; i < samples.count; ++i) {
    const Index element = (2 * i + 1) * elements / (2 * samples.count);
    samples.at[i] = element / plane * order.channels * plane + element % plane;
  }
  return samples;
}

bool has_relu(const Problem& problem) {
  return problem.operation == Operation::relu_forward_training ||
         problem.operation == Operation::relu_training_backward;
}

}  // namespace

Task task_for(const Problem& problem, const Ports& ports, const SummationOrder& order) {
  Task task;
  task.tensors = tensors_of(ports);
  task.formula.epsilon = problem.attributes.epsilon;
  task.formula.momentum = problem.attributes.momentum;
  task.formula.variance_kind = problem.variance_kind;
  task.formula.statistics = problem.statistics;
  task.formula.per_channel = problem.pass == Pass::apply
                                 ? *ports.sums.count
                                 : static_cast<double>(problem.geometry.per_channel());
  task.pass = problem.pass;
  task.totals = {ports.sums.first, ports.sums.second};
  if (has_relu(problem)) task.formula.relu = relu_of(problem.attributes.clip, problem.data);
  task.order = order;
  task.reduce_writes_residual = reduce_writes_residual(problem, ports, order);
  if (is_forward(problem) && needs_sums(problem)) task.samples = samples_of(order);
  return task;
}

Traffic traffic_of(const Problem& problem, const Ports& ports, const Cache& cache) {
  const Signature& signature = signature_of(problem.operation);
  Traffic traffic;
  signature.inputs.for_each([&](const Input port) {
    if (is_tensor(port) && ports.in[port] != nullptr) ++traffic.tensors;
  });
  signature.outputs.for_each([&](const Output port) {
    if (is_tensor(port) && ports.out[port] != nullptr) ++traffic.tensors;
  });
  traffic.type = problem.data;
  for (const Input port : {Input::src, Input::diff_dst, Input::dst}) {
    if (ports.in[port] != nullptr) ++traffic.summed;
  }
  traffic.bytes = static_cast<double>(traffic.tensors * problem.geometry.elements()) *
                  static_cast<double>(size_of(problem.data));
  traffic.cache_filled = traffic.bytes / static_cast<double>(cache.bytes);
  return traffic;
}

bool reduce_writes_residual(const Problem& problem, const Ports& ports,
                            const SummationOrder& order) {
  // A mask from src needs no further tensor in either pass. Frozen statistics have another formula.
  return order.columns && problem.pass == Pass::both && problem.statistics == Statistics::batch &&
         ports.out[Output::diff_residual] != nullptr && ports.in[Input::dst] != nullptr;
}

bool may_write_non_temporal(const Problem& problem, const Ports& ports,
                            const SummationOrder& order) {
  if (reduce_writes_residual(problem, ports, order)) return true;
  const Signature& signature = signature_of(problem.operation);
  if (ports.out[signature.in_place_output] == ports.in[signature.in_place_input]) return false;
  // The stores are aligned for the result, and must also be aligned for the other written tensor.
  const void* const other = ports.out[Output::diff_residual];
  const auto line_offset = [](const void* const p) {
    return reinterpret_cast<std::uintptr_t>(p) % 64;
  };
  return other == nullptr || line_offset(other) == line_offset(ports.out[Output::diff_src]);
}

bool is_forward(const Problem& problem) {
  return problem.operation == Operation::forward_training ||
         problem.operation == Operation::relu_forward_training;
}

bool needs_sums(const Problem& problem) {
  if (problem.pass != Pass::both) return problem.pass == Pass::reduce;
  return is_forward(problem) || problem.statistics == Statistics::batch ||
         problem.outputs.has(Output::diff_gamma) || problem.outputs.has(Output::diff_beta);
}

}  // namespace onedsl::native
