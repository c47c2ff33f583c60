#include "kernels.hpp"

#include <atomic>
#include <utility>

#include "../core/running_statistics.hpp"
#include "compute.hpp"

namespace onedsl::torch {
namespace {

std::atomic<bool> in_use = false;

template <class Ours, class... Outputs, class... Parameters, std::size_t... index>
void run(Value* const values, std::tuple<Outputs...> (*const pytorch)(Parameters...),
         const Ours& ours, std::index_sequence<index...>) {
  const std::tuple<Argument<Parameters>...> arguments(values[index]...);
  std::optional<Results<sizeof...(Outputs)>> results;
  if (in_use.load(std::memory_order_relaxed)) results = ours(std::get<index>(arguments).get()...);
  if (!results) results = call(pytorch, std::get<index>(arguments)...);
  write_results(values, *std::move(results));
}

template <class... Outputs, class... Parameters, class Ours>
void run(Value* const values, std::tuple<Outputs...> (*const pytorch)(Parameters...),
         const Ours& ours) {
  run(values, pytorch, ours, std::index_sequence_for<Parameters...>());
}

// The kernel that is registered for an op of PyTorch: `ours`, or PyTorch's own where that returns
// nothing.
template <auto pytorch, auto ours>
void kernel(Value* const values, std::uint64_t, std::uint64_t) {
  run(values, cpu_kernels.*pytorch, ours);
}

// The key of a call that passes no optional tensor and computes all outputs.
std::optional<PlanKey> plan_key(const View& src, const Operation operation, const double epsilon) {
  return plan_key(src, op_config(operation, epsilon), {}, signature_of(operation).outputs);
}

std::optional<Results<3>> forward(const Tensor& src_tensor, const OptionalTensor& weight,
                                  const OptionalTensor& bias,
                                  const OptionalTensor& running_mean_tensor,
                                  const OptionalTensor& running_var_tensor, const bool training,
                                  const double momentum, const double epsilon) {
  if (!training) return std::nullopt;
  const std::optional<View> src = view(src_tensor);
  if (!src) return std::nullopt;
  const std::optional<PlanKey> key = plan_key(*src, Operation::forward_training, epsilon);
  if (!key) return std::nullopt;
  const std::int64_t channels = src->sizes[1];
  const Affine affine(weight, bias, channels);
  const Vector running_mean(running_mean_tensor, channels);
  const Vector running_var(running_var_tensor, channels);
  const bool any_vector =
      affine.gamma() != nullptr || running_mean.data() != nullptr || running_var.data() != nullptr;
  // Without any f32 vector, PyTorch's statistics have the type of src.
  if (!(affine.is_supported() && running_mean.is_supported() && running_var.is_supported() &&
        (src->type == DataType::f32 || any_vector)) ||
      (running_mean.data() == nullptr) != (running_var.data() == nullptr)) {
    return std::nullopt;
  }
  Results<3> results = compute_forward(*key, *src, affine, nullptr, empty_like(*src));
  const float* const mean = memory_of(*results[1]);
  float* const variance = memory_of(*results[2]);
  if (running_mean.data() != nullptr) {
    update_running(running_mean.mutable_data(), running_var.mutable_data(), mean, variance,
                   channels, momentum, static_cast<double>(key->problem.geometry.per_statistic()));
  }
  to_inverse_stddev(variance, channels, epsilon);
  return results;
}

std::optional<Results<3>> forward_legit(const Tensor& src, const OptionalTensor& weight,
                                        const OptionalTensor& bias, const Tensor& running_mean,
                                        const Tensor& running_var, const bool training,
                                        const double momentum, const double epsilon) {
  return forward(src, weight, bias, OptionalTensor(running_mean), OptionalTensor(running_var),
                 training, momentum, epsilon);
}

std::optional<Results<3>> forward_no_stats(const Tensor& src, const OptionalTensor& weight,
                                           const OptionalTensor& bias, const bool training,
                                           const double momentum, const double epsilon) {
  return forward(src, weight, bias, {}, {}, training, momentum, epsilon);
}

std::optional<Results<4>> forward_with_update(const Tensor& src, const OptionalTensor& weight,
                                              const OptionalTensor& bias,
                                              const Tensor& running_mean, const Tensor& running_var,
                                              const double momentum, const double epsilon) {
  OwnedTensor reserve = empty_bytes();
  std::optional<Results<3>> three =
      forward_legit(src, weight, bias, running_mean, running_var, true, momentum, epsilon);
  if (!three) return std::nullopt;
  auto& [dst, mean, inverse_stddev] = *three;
  return Results<4>{std::move(dst), std::move(mean), std::move(inverse_stddev), std::move(reserve)};
}

std::optional<Results<3>> backward(const Tensor& diff_dst_tensor, const Tensor& src_tensor,
                                   const OptionalTensor& weight_tensor,
                                   const OptionalTensor& running_mean,
                                   const OptionalTensor& running_var,
                                   const OptionalTensor& save_mean,
                                   const OptionalTensor& save_invstd, const bool train,
                                   const double epsilon, const std::array<bool, 3> output_mask) {
  const auto [diff_src_wanted, diff_gamma_wanted, diff_beta_wanted] = output_mask;
  const std::optional<View> src = view(src_tensor);
  const std::optional<View> diff_dst = view(diff_dst_tensor);
  if (!diff_src_wanted || !src || !diff_dst || !same_shape_and_type(*src, *diff_dst)) {
    return std::nullopt;
  }
  std::optional<PlanKey> key = plan_key(*src, Operation::training_backward, epsilon);
  if (!key) return std::nullopt;
  const std::int64_t channels = src->sizes[1];
  const Vector weight(weight_tensor, channels);
  const Vector mean(train ? save_mean : running_mean, channels);
  const Vector variance(train ? save_invstd : running_var, channels);
  if (!weight.is_supported() || mean.data() == nullptr || variance.data() == nullptr) {
    return std::nullopt;
  }

  Problem& problem = key->problem;
  if (train) {  // the saved value contains epsilon
    problem.variance_kind = VarianceKind::inverse_stddev;
    problem.attributes.epsilon = 0;
  } else {
    problem.statistics = Statistics::frozen;
  }
  const InLayoutOf in_layout(*src, diff_dst_tensor, *diff_dst);
  Ports ports;
  ports.in[Input::src] = src->data;
  ports.in[Input::diff_dst] = in_layout.data();
  ports.in[Input::mean] = mean.data();
  ports.in[Input::variance] = variance.data();
  ports.in[Input::gamma] = weight.data();
  Results<3> results = {empty_like(*src), undefined(), undefined()};
  auto& [diff_src, diff_gamma, diff_beta] = results;
  ports.out[Output::diff_src] = memory_of<void>(*diff_src);
  if (diff_gamma_wanted || diff_beta_wanted) {
    diff_gamma = empty_vector(channels);
    diff_beta = empty_vector(channels);
    ports.out[Output::diff_gamma] = memory_of(*diff_gamma);
    ports.out[Output::diff_beta] = memory_of(*diff_beta);
  } else {
    problem.outputs = signature_of(problem.operation).required;
  }
  execute(*key, ports);
  if (!diff_gamma_wanted) diff_gamma = undefined();
  if (!diff_beta_wanted) diff_beta = undefined();
  return results;
}

std::optional<Results<3>> backward_with_reserve(
    const Tensor& diff_dst, const Tensor& src, const Tensor& weight,
    const OptionalTensor& running_mean, const OptionalTensor& running_var,
    const OptionalTensor& save_mean, const OptionalTensor& save_invstd, const bool train,
    const double epsilon, const std::array<bool, 3> output_mask, const Tensor&) {
  return backward(diff_dst, src, OptionalTensor(weight), running_mean, running_var, save_mean,
                  save_invstd, train, epsilon, output_mask);
}

}  // namespace

void override_pytorch() {
  add_kernels(
      "aten",
      {{"native_batch_norm", &kernel<&CpuKernels::native_batch_norm, &forward>},
       {"_native_batch_norm_legit", &kernel<&CpuKernels::legit, &forward_legit>},
       {"_native_batch_norm_legit.no_stats",
        &kernel<&CpuKernels::legit_no_stats, &forward_no_stats>},
       {"_batch_norm_with_update", &kernel<&CpuKernels::with_update, &forward_with_update>},
       {"native_batch_norm_backward", &kernel<&CpuKernels::native_batch_norm_backward, &backward>},
       {"batch_norm_backward", &kernel<&CpuKernels::batch_norm_backward, &backward_with_reserve>}});
}

void use_kernels(const bool use) noexcept { in_use.store(use, std::memory_order_relaxed); }

}  // namespace onedsl::torch
