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

// The kernel that is registered for an op of PyTorch: `ours`, or PyTorch's own if that does not
// support the arguments.
template <auto pytorch, auto ours>
void kernel(Value* const values, std::uint64_t, std::uint64_t) {
  with_arguments(values, ours, [&](const auto&... arguments) {
    if (in_use.load(std::memory_order_relaxed)) {
      auto outcome = ours(arguments.get()...);
      if (outcome.reason == nullptr) return write_results(values, std::move(outcome.results));
      if (logging_enabled.load(std::memory_order_relaxed)) logged_fallback(outcome.reason);
    }
    write_results(values, call(cpu_kernels.*pytorch, arguments...));
  });
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

}  // namespace

void override_pytorch(const LoggedFallback fallback) {
  logged_fallback = fallback;
  add_kernels("aten",
              {{"native_batch_norm", &kernel<&CpuKernels::forward, &forward>},
               {"_native_batch_norm_legit", &kernel<&CpuKernels::forward_legit, &forward_legit>},
               {"_native_batch_norm_legit.no_stats",
                &kernel<&CpuKernels::forward_no_stats, &forward_no_stats>},
               {"native_batch_norm_backward", &kernel<&CpuKernels::backward, &backward>}});
}

void use_kernels(const bool use) noexcept { in_use.store(use, std::memory_order_relaxed); }

}  // namespace onedsl::torch
