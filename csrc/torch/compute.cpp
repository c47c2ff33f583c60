#include "compute.hpp"

#include <utility>

#include "../core/threads.hpp"
#include "../native/execute.hpp"

namespace onedsl::torch {
namespace {

void execute(const Source& source, const OpConfig& config, const Ports& ports) {
  const Problem problem{config,        source.geometry,   source.view.type,
                        DataType::f32, present(ports.in), present(ports.out)};
  native::execute(problem, max_threads(), ports);
}

// Returns a new tensor for an output of a call; an undefined tensor, and no port, if not wanted.
OwnedTensor output(Ports& ports, const Output port, const Source& source,
                   const bool wanted = true) {
  if (!wanted) return make(api->undefined);
  OwnedTensor made =
      is_tensor(port) ? empty_like(source.view) : empty_vector(source.geometry.channels);
  ports.out[port] = memory_of<void>(*made);
  return made;
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
  float* const running_mean = memory_of(*running.mean);
  float* const running_variance = memory_of(*running.variance);
  for (std::int64_t c = 0; c < geometry.channels; ++c) {
    running_mean[c] = mix(running_mean[c], mean[c]);
    running_variance[c] = mix(running_variance[c], static_cast<double>(variance[c]) * unbiased);
  }
}

// `addition` is the residual, or in the backward pass dst, null if absent.
OpConfig op_config(const Operation operation, const ReLU& relu, const void* const addition,
                   const double epsilon) {
  if (relu.clip && !(*relu.clip > 0)) throw Unsupported("a clip that is not positive");
  if (addition != nullptr && !relu.is_applied) throw Unsupported("an addition without a ReLU");
  OpConfig config;
  config.operation = operation;
  config.attributes.epsilon = epsilon;
  if (relu.clip) config.attributes.clip = *relu.clip;
  return config;
}

}  // namespace

Source read_source(const Tensor& tensor) {
  const View v = aligned(view_of(tensor));
  if (v.rank < 2 || v.rank > max_rank) throw Unsupported("inputs of this rank");
  const std::optional<Geometry> geometry = dense_geometry(v, ChannelAxes{1} << 1);
  if (!geometry) throw Unsupported("strided inputs");
  if (geometry->elements() <= geometry->channels)
    throw Unsupported("fewer than two values per channel");
  return {v, *geometry, nullptr};
}

void check_epsilon(const double epsilon) {
  if (!is_valid_epsilon(epsilon))
    throw Unsupported("an eps that is not positive and finite in float32");
}

bool is_given(const OptionalTensor& tensor) { return tensor && get(api->is_defined, &*tensor); }

const float* optional_vector(const OptionalTensor& tensor, const std::int64_t channels) {
  return is_given(tensor) ? f32_vector(*tensor, channels) : nullptr;
}

Affine both_or_neither(const float* const gamma, const float* const beta,
                       const std::int64_t channels) {
  Affine affine{gamma, beta, {}};
  if ((gamma == nullptr) == (beta == nullptr)) return affine;
  affine.absent.assign(static_cast<std::size_t>(channels), gamma == nullptr ? 1.0F : 0.0F);
  (gamma == nullptr ? affine.gamma : affine.beta) = affine.absent.data();
  return affine;
}

InLayoutOfSource in_layout_of(const Source& source, const Tensor& tensor) {
  const View v = view_of(tensor);
  if (!v.same_shape(source.view)) {
    throw Unsupported("tensors whose shape or dtype is not the input's");
  }
  if (v.is_aligned() && v.same_strides(source.view)) return {v.data, nullptr};
  OwnedTensor copy = empty_like(source.view);
  check(api->copy(copy.get(), &tensor, 0));
  const void* const data = memory_of<void>(*copy);
  return {data, std::move(copy)};
}

Results<3> compute_forward(const Source& source, const Inputs& inputs, const ReLU& relu,
                           const double epsilon, const Running& running) {
  check_epsilon(epsilon);
  const bool has_mean = optional_vector(running.mean, source.geometry.channels) != nullptr;
  const bool has_variance = optional_vector(running.variance, source.geometry.channels) != nullptr;
  if (has_mean != has_variance) throw Unsupported("one running statistic without the other");
  OpConfig config =
      op_config(relu.is_applied ? Operation::relu_forward_training : Operation::forward_training,
                relu, inputs[Input::residual], epsilon);
  config.variance_kind = VarianceKind::inverse_stddev;
  config.attributes.momentum = 0;  // the new running statistics are the batch's
  const auto length = static_cast<std::size_t>(source.geometry.channels);
  std::vector<float> scratch(3 * length);  // old running statistics, the batch's mean and variance
  float* const batch_mean = scratch.data() + length;
  float* const batch_variance = batch_mean + length;
  Ports ports;
  ports.in = inputs;
  ports.in[Input::src] = source.view.data;
  ports.in[Input::mean] = ports.in[Input::variance] = scratch.data();
  ports.out[Output::running_mean] = batch_mean;
  ports.out[Output::running_variance] = batch_variance;
  Results<3> results = {output(ports, Output::dst, source),
                        output(ports, Output::batch_mean, source),
                        output(ports, Output::batch_variance, source)};
  execute(source, config, ports);
  if (has_mean) update_running(running, batch_mean, batch_variance, source.geometry);
  return results;
}

Results<4> compute_backward(const Source& source, const Inputs& inputs, const ReLU& relu,
                            const Statistics statistics, const double epsilon,
                            const bool parameters) {
  OpConfig config =
      op_config(relu.is_applied ? Operation::relu_training_backward : Operation::training_backward,
                relu, inputs[Input::dst], epsilon);
  config.statistics = statistics;
  if (epsilon == 0) config.variance_kind = VarianceKind::inverse_stddev;
  Ports ports;
  ports.in = inputs;
  ports.in[Input::src] = source.view.data;
  Results<4> results = {
      output(ports, Output::diff_src, source),
      output(ports, Output::diff_gamma, source, parameters),
      output(ports, Output::diff_beta, source, parameters),
      output(ports, Output::diff_residual, source, inputs[Input::dst] != nullptr)};
  execute(source, config, ports);
  return results;
}

// The library is never deleted: PyTorch's dispatcher cannot remove a kernel safely while other
// threads call it.
void add_kernels(const char* const ops,
                 const std::initializer_list<std::pair<const char*, Kernel*>> kernels) {
  Library* library = nullptr;
  check(api->make_library(ops, "CPU", "onedsl/csrc/torch/kernels.cpp", 0, &library));
  for (const auto& [op, kernel] : kernels) {
    check(api->add_kernel(library, op, kernel, oldest_version));
  }
}

}  // namespace onedsl::torch
