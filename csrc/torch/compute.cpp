#include "compute.hpp"

#include <atomic>
#include <memory>

#include "../core/logging_enabled.hpp"
#include "../plan/cache.hpp"

namespace onedsl::torch {
namespace {

LoggedRun logged_run = nullptr;

void execute(const PlanKey& key, const Ports& ports) {
  const std::shared_ptr<const Plan> plan = find_plan(key);
  if (logging_enabled.load(std::memory_order_relaxed)) return logged_run(*plan, ports);
  plan->execute(ports);
}

PlanKey plan_key(const Source& source, const OpConfig& config, const InputSet given,
                 const OutputSet outputs) {
  return make_key(config, source.geometry, source.view.type, DataType::f32, given, outputs);
}

// Updates the running statistics. In PyTorch, momentum is the weight of the new statistics (in
// oneDNN it is the weight of the old ones), and the running variance is unbiased.
void update_running(const Running& running, const float* const mean, const float* const variance,
                    const Geometry& geometry) {
  const auto count = static_cast<double>(geometry.per_channel());
  const double unbiased = count / (count - 1);
  const auto mix = [&](const float before, const double batch) {
    return static_cast<float>(running.momentum * batch +
                              (1 - running.momentum) * static_cast<double>(before));
  };
  for (std::int64_t c = 0; c < geometry.channels; ++c) {
    running.mean[c] = mix(running.mean[c], mean[c]);
    running.variance[c] = mix(running.variance[c], static_cast<double>(variance[c]) * unbiased);
  }
}

OpConfig op_config(const Operation operation, const ReLU& relu, const double epsilon) {
  OpConfig config;
  config.operation = operation;
  config.attributes.epsilon = epsilon;
  if (relu.clip) config.attributes.clip = *relu.clip;
  return config;
}

}  // namespace

Source read_source(const Tensor& tensor) {
  const View v = view_of(tensor);
  if (v.rank < 2 || v.rank > max_rank) throw Unsupported("inputs of this rank");
  const std::optional<Geometry> geometry = dense_geometry(v, ChannelAxes{1} << 1);
  if (!geometry) throw Unsupported("strided inputs");
  if (geometry->elements() <= geometry->channels)
    throw Unsupported("fewer than two values per channel");
  return {v, *geometry};
}

void check_epsilon(const double epsilon) {
  if (!is_valid_epsilon(epsilon))
    throw Unsupported("an eps that is not positive and finite in float32");
}

float* optional_vector(const OptionalTensor& tensor, const std::int64_t channels) {
  // Autograd passes undefined tensors for absent ones.
  const bool given = tensor && get(api.is_defined, &*tensor);
  return given ? f32_vector(*tensor, channels) : nullptr;
}

Affine::Affine(const OptionalTensor& weight, const OptionalTensor& bias,
               const std::int64_t channels)
    : gamma_(optional_vector(weight, channels)), beta_(optional_vector(bias, channels)) {
  if ((gamma_ == nullptr) == (beta_ == nullptr)) return;
  absent_.assign(static_cast<std::size_t>(channels), gamma_ == nullptr ? 1.0F : 0.0F);
  (gamma_ == nullptr ? gamma_ : beta_) = absent_.data();
}

InLayoutOf::InLayoutOf(const Source& source, const Tensor& tensor) {
  const View v = view_of(tensor);
  if (!v.same_shape(source.view)) {
    throw Unsupported("tensors whose shape or dtype is not the input's");
  }
  data_ = v.data;
  if (v.same_layout(source.view)) return;
  copy_ = empty_like(source.view);
  check(api.copy(copy_.get(), &tensor, 0));
  data_ = memory_of<void>(*copy_);
}

Results<3> compute_forward(const Source& source, const Affine& affine, const void* const residual,
                           const ReLU& relu, const double epsilon, const Running& running) {
  check_epsilon(epsilon);
  OpConfig config =
      op_config(relu.is_applied ? Operation::relu_forward_training : Operation::forward_training,
                relu, epsilon);
  config.variance_kind = VarianceKind::inverse_stddev;
  config.attributes.momentum = 0;  // the new running statistics are the batch's
  const std::int64_t channels = source.channels();
  const auto length = static_cast<std::size_t>(channels);
  Results<3> results = {empty_like(source.view), empty_vector(channels), empty_vector(channels)};
  std::vector<float> scratch(3 * length);  // old running statistics, the batch's mean and variance
  float* const batch_mean = scratch.data() + length;
  float* const batch_variance = batch_mean + length;
  Ports ports;
  ports.in[Input::src] = source.view.data;
  ports.in[Input::mean] = ports.in[Input::variance] = scratch.data();
  ports.in[Input::gamma] = affine.gamma();
  ports.in[Input::beta] = affine.beta();
  ports.in[Input::residual] = residual;
  ports.out[Output::dst] = memory_of<void>(*results[0]);
  ports.out[Output::running_mean] = batch_mean;
  ports.out[Output::running_variance] = batch_variance;
  ports.out[Output::batch_mean] = memory_of(*results[1]);
  ports.out[Output::batch_variance] = memory_of(*results[2]);
  execute(plan_key(source, config, residual != nullptr ? InputSet(Input::residual) : InputSet(),
                   signature_of(config.operation).outputs),
          ports);
  if (running.mean != nullptr) {
    update_running(running, batch_mean, batch_variance, source.geometry);
  }
  return results;
}

Results<4> compute_backward(const Source& source, const BackwardInputs& inputs, const ReLU& relu,
                            const Statistics statistics, const double epsilon,
                            const bool parameters) {
  OpConfig config =
      op_config(relu.is_applied ? Operation::relu_training_backward : Operation::training_backward,
                relu, epsilon);
  config.statistics = statistics;
  if (epsilon == 0) config.variance_kind = VarianceKind::inverse_stddev;
  const Signature& signature = signature_of(config.operation);
  const std::int64_t channels = source.channels();

  Results<4> results = {empty_like(source.view), undefined(), undefined(), undefined()};
  auto& [diff_src, diff_gamma, diff_beta, diff_residual] = results;
  Ports ports;
  OutputSet outputs(Output::diff_src);
  ports.in[Input::src] = source.view.data;
  ports.in[Input::diff_dst] = inputs.diff_dst;
  ports.in[Input::mean] = inputs.mean;
  ports.in[Input::variance] = inputs.variance;
  ports.in[Input::gamma] = inputs.gamma;
  ports.in[Input::beta] = inputs.beta;
  ports.in[Input::dst] = inputs.dst;
  ports.out[Output::diff_src] = memory_of<void>(*diff_src);
  if (parameters) {
    diff_gamma = empty_vector(channels);
    diff_beta = empty_vector(channels);
    ports.out[Output::diff_gamma] = memory_of(*diff_gamma);
    ports.out[Output::diff_beta] = memory_of(*diff_beta);
    outputs = OutputSet(Output::diff_src, Output::diff_gamma, Output::diff_beta);
  }
  if (inputs.dst != nullptr) {
    diff_residual = empty_like(source.view);
    ports.out[Output::diff_residual] = memory_of<void>(*diff_residual);
    outputs = signature.outputs;
  }
  execute(
      plan_key(source, config, inputs.dst != nullptr ? InputSet(Input::dst) : InputSet(), outputs),
      ports);
  return results;
}

void set_logged_run(const LoggedRun run) { logged_run = run; }

// The library is never deleted: PyTorch's dispatcher cannot remove a kernel safely while other
// threads call it.
void add_kernels(const char* const ops,
                 const std::initializer_list<std::pair<const char*, Kernel*>> kernels) {
  Library* library = nullptr;
  check(api.make_library(ops, "CPU", "onedsl/csrc/torch/kernels.cpp", 0, &library));
  for (const auto& [op, kernel] : kernels) {
    check(api.add_kernel(library, op, kernel, oldest_version));
  }
}

}  // namespace onedsl::torch
