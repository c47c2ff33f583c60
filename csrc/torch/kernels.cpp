#include "kernels.hpp"

#include <atomic>
#include <cmath>
#include <utility>

#include "../core/logging_enabled.hpp"
#include "compute.hpp"

namespace onedsl::torch {
namespace {

std::atomic<bool> in_use = false;
LoggedFallback logged_fallback = nullptr;

template <class Ours, class... Outputs, class... Parameters, std::size_t... index>
void run(Value* const values, std::tuple<Outputs...> (*const pytorch)(Parameters...),
         const Ours& ours, std::index_sequence<index...>) {
  const std::tuple<Argument<Parameters>...> arguments(values[index]...);
  if (in_use.load(std::memory_order_relaxed)) {
    Outcome<sizeof...(Outputs)> outcome = ours(std::get<index>(arguments).get()...);
    if (outcome.reason == nullptr) return write_results(values, std::move(outcome.results));
    if (logging_enabled.load(std::memory_order_relaxed)) logged_fallback(outcome.reason);
  }
  write_results(values, call(pytorch, std::get<index>(arguments)...));
}

template <class... Outputs, class... Parameters, class Ours>
void run(Value* const values, std::tuple<Outputs...> (*const pytorch)(Parameters...),
         const Ours& ours) {
  run(values, pytorch, ours, std::index_sequence_for<Parameters...>());
}

// The kernel that is registered for an op of PyTorch: `ours`, or PyTorch's own if that does not
// support the arguments.
template <auto pytorch, auto ours>
void kernel(Value* const values, std::uint64_t, std::uint64_t) {
  run(values, cpu_kernels.*pytorch, ours);
}

// Reads src in a layout that PyTorch's batch norm keeps in its results.
Reason read_like_pytorch(const Tensor& tensor, Source& source) {
  if (const Reason reason = read_source(tensor, source)) return reason;
  if (!is_contiguous_or_channels_last(source.view)) {
    return "inputs that are neither contiguous nor channels_last";
  }
  return nullptr;
}

Outcome<3> forward(const Tensor& src, const OptionalTensor& weight, const OptionalTensor& bias,
                   const OptionalTensor& running_mean, const OptionalTensor& running_var,
                   const bool training, const double momentum, const double epsilon) {
  if (!training) return "the forward pass of evaluation";
  Source source = {};
  if (const Reason reason = read_like_pytorch(src, source)) return reason;
  const std::int64_t channels = source.channels();
  const Affine affine(weight, bias, channels);
  const Vector mean(running_mean, channels);
  const Vector variance(running_var, channels);
  for (const Reason reason : {affine.reason(), mean.reason(), variance.reason()}) {
    if (reason != nullptr) return reason;
  }
  if ((mean.data() == nullptr) != (variance.data() == nullptr)) {
    return "one running statistic without the other";
  }
  if (source.view.type != DataType::f32 && affine.gamma() == nullptr && mean.data() == nullptr) {
    return "16-bit inputs without parameters and running statistics";  // PyTorch's are 16-bit then
  }
  return compute_forward(source, affine, nullptr, {}, epsilon,
                         {mean.data(), variance.data(), momentum});
}

Outcome<3> forward_legit(const Tensor& src, const OptionalTensor& weight,
                         const OptionalTensor& bias, const Tensor& running_mean,
                         const Tensor& running_var, const bool training, const double momentum,
                         const double epsilon) {
  return forward(src, weight, bias, OptionalTensor(running_mean), OptionalTensor(running_var),
                 training, momentum, epsilon);
}

Outcome<3> forward_no_stats(const Tensor& src, const OptionalTensor& weight,
                            const OptionalTensor& bias, const bool training, const double momentum,
                            const double epsilon) {
  return forward(src, weight, bias, {}, {}, training, momentum, epsilon);
}

Outcome<4> forward_with_update(const Tensor& src, const OptionalTensor& weight,
                               const OptionalTensor& bias, const Tensor& running_mean,
                               const Tensor& running_var, const double momentum,
                               const double epsilon) {
  OwnedTensor reserve = empty_vector(0, api.u8());
  Outcome<3> three =
      forward_legit(src, weight, bias, running_mean, running_var, true, momentum, epsilon);
  if (three.reason != nullptr) return three.reason;
  auto& [dst, mean, inverse_stddev] = three.results;
  return Results<4>{std::move(dst), std::move(mean), std::move(inverse_stddev), std::move(reserve)};
}

Outcome<3> backward(const Tensor& diff_dst_tensor, const Tensor& src, const OptionalTensor& weight,
                    const OptionalTensor& running_mean, const OptionalTensor& running_var,
                    const OptionalTensor& save_mean, const OptionalTensor& save_invstd,
                    const bool train, const double epsilon, const std::array<bool, 3> output_mask) {
  const auto [diff_src_wanted, diff_gamma_wanted, diff_beta_wanted] = output_mask;
  if (!diff_src_wanted) return "gradients of the parameters alone";
  if (!(std::isfinite(epsilon) && epsilon > 0)) return unsupported_epsilon;
  Source source = {};
  if (const Reason reason = read_like_pytorch(src, source)) return reason;
  const std::int64_t channels = source.channels();
  const Vector gamma(weight, channels);
  const Vector mean(train ? save_mean : running_mean, channels);
  const Vector variance(train ? save_invstd : running_var, channels);
  for (const Reason reason : {gamma.reason(), mean.reason(), variance.reason()}) {
    if (reason != nullptr) return reason;
  }
  if (mean.data() == nullptr || variance.data() == nullptr) return "absent statistics";
  const InLayoutOf diff_dst(source, diff_dst_tensor);
  if (diff_dst.reason() != nullptr) return diff_dst.reason();
  // The saved value contains epsilon.
  auto [diff_src, diff_gamma, diff_beta, diff_residual] =
      compute_backward(source, {diff_dst.data(), mean.data(), variance.data(), gamma.data()}, {},
                       train ? Statistics::batch : Statistics::frozen, train ? 0 : epsilon,
                       diff_gamma_wanted || diff_beta_wanted);
  if (!diff_gamma_wanted) diff_gamma = undefined();
  if (!diff_beta_wanted) diff_beta = undefined();
  return Results<3>{std::move(diff_src), std::move(diff_gamma), std::move(diff_beta)};
}

Outcome<3> backward_with_reserve(const Tensor& diff_dst, const Tensor& src, const Tensor& weight,
                                 const OptionalTensor& running_mean,
                                 const OptionalTensor& running_var, const OptionalTensor& save_mean,
                                 const OptionalTensor& save_invstd, const bool train,
                                 const double epsilon, const std::array<bool, 3> output_mask,
                                 const Tensor&) {
  return backward(diff_dst, src, OptionalTensor(weight), running_mean, running_var, save_mean,
                  save_invstd, train, epsilon, output_mask);
}

}  // namespace

void override_pytorch(const LoggedFallback fallback) {
  logged_fallback = fallback;
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
