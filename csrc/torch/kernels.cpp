#include "kernels.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <stdexcept>
#include <utility>

#include "call_log.hpp"
#include "compute.hpp"
#include "memory.hpp"

namespace onedsl::torch {
namespace {

// The number of uses, plus `period` for each time that all of them were ended. A single number
// needs no lock, for which a forked child or a signal handler would wait forever.
std::atomic<std::uint64_t> uses = 0;
constexpr std::uint64_t period = std::uint64_t{1} << 32;

// The results of `ours`. nullopt as Unsupported, without the time that an exception takes.
using Outcome = std::optional<Results<3>>;

// The kernel that is registered for an op of PyTorch: `ours`, or PyTorch's own if that does not
// support the arguments.
template <bool is_forward, auto pytorch, auto ours>
void kernel(Value* const values, std::uint64_t, std::uint64_t) {
  with_arguments(values, ours, [&](const auto&... arguments) {
    if (in_use()) {
      try {
        if (Outcome outcome = ours(arguments...)) {
          log_call({is_forward, "onedsl eager", nullptr}, arguments...);
          return write_results(values, *std::move(outcome));
        }
        log_call({is_forward, nullptr, "the forward pass of evaluation"}, arguments...);
      } catch (const Unsupported& unsupported) {
        log_call({is_forward, nullptr, unsupported.what()}, arguments...);
      }
    }
    write_results(values, call<3>(cpu_kernels().*pytorch, arguments...));
  });
}

using Three = CpuKernels::Three;

// Returns a function that calls a kernel of PyTorch, with memory for more results than it should
// have.
template <class... Parameters>
auto checked(Three (*const kernel)(Parameters...)) {
  return [kernel](Parameters... arguments) {
    if (kernel == nullptr) throw std::runtime_error("it is missing");
    std::array<void*, 16> memory = {};
    // The address of the results is the first argument in the x86-64 ABI.
    auto* const function =
        reinterpret_cast<void* (*)(void*, Parameters...)>(reinterpret_cast<std::uintptr_t>(kernel));
    function(memory.data(), arguments...);
    for (std::size_t i = 0; i < memory.size(); ++i) {
      if ((memory[i] != nullptr) != (i < std::tuple_size_v<Three>)) {
        throw std::runtime_error("it has results of another type");
      }
    }
    return *reinterpret_cast<const Three*>(memory.data());
  };
}

// PyTorch's own kernel as an op of its own, to compare with the op that `kernel` replaces.
template <auto pytorch>
void pytorchs_kernel(Value* const values, std::uint64_t, std::uint64_t) {
  const auto own = cpu_kernels().*pytorch;
  with_arguments(values, own, [&](const auto&... arguments) {
    write_results(values, call<3>(checked(own), arguments...));
  });
}

// Reads src in a layout that PyTorch's batch norm keeps in its results.
Source read_like_pytorch(const Tensor& tensor) {
  Source source = read_source(tensor);
  if (!is_contiguous_or_channels_last(source.view)) {
    throw Unsupported("inputs that are neither contiguous nor channels_last");
  }
  return source;
}

// PyTorch's kernel updates the running statistics before it reads the other arguments.
void check_running(const Source& source, const Affine& affine, const float* const mean,
                   const float* const variance) {
  const std::size_t bytes = static_cast<std::size_t>(source.geometry.channels) * sizeof(float);
  const auto check = [&](const float* const updated, const void* const other,
                         const std::size_t other_bytes) {
    if (updated != nullptr && other != nullptr &&
        Memory{reinterpret_cast<std::uintptr_t>(updated),
               reinterpret_cast<std::uintptr_t>(updated) + bytes}
            .meets({reinterpret_cast<std::uintptr_t>(other),
                    reinterpret_cast<std::uintptr_t>(other) + other_bytes})) {
      throw Unsupported("running statistics that share memory with another argument");
    }
  };
  for (const float* const updated : {mean, variance}) {
    check(updated, source.view.data, source.view.bytes());
    check(updated, affine.gamma, bytes);
    check(updated, affine.beta, bytes);
  }
  check(mean, variance, bytes);
}

Outcome forward(const Tensor& src, const OptionalTensor& weight, const OptionalTensor& bias,
                const OptionalTensor& running_mean, const OptionalTensor& running_var,
                const bool training, const double momentum, const double epsilon) {
  if (!training) return std::nullopt;
  const Source source = read_like_pytorch(src);
  const std::int64_t channels = source.geometry.channels;
  const Affine affine =
      both_or_neither(optional_vector(weight, channels), optional_vector(bias, channels), channels);
  const float* const mean = optional_vector(running_mean, channels);
  if (source.view.type != DataType::f32 && affine.gamma == nullptr && mean == nullptr) {
    // PyTorch's statistics are 16-bit then.
    throw Unsupported("16-bit inputs without parameters and running statistics");
  }
  check_running(source, affine, mean, optional_vector(running_var, channels));
  Inputs inputs;
  inputs[Input::gamma] = affine.gamma;
  inputs[Input::beta] = affine.beta;
  return compute_forward(source, inputs, {}, epsilon, {running_mean, running_var, momentum});
}

Outcome forward_legit(const Tensor& src, const OptionalTensor& weight, const OptionalTensor& bias,
                      const Tensor& running_mean, const Tensor& running_var, const bool training,
                      const double momentum, const double epsilon) {
  return forward(src, weight, bias, OptionalTensor(running_mean), OptionalTensor(running_var),
                 training, momentum, epsilon);
}

Outcome forward_no_stats(const Tensor& src, const OptionalTensor& weight,
                         const OptionalTensor& bias, const bool training, const double momentum,
                         const double epsilon) {
  return forward(src, weight, bias, {}, {}, training, momentum, epsilon);
}

Outcome backward(const Tensor& diff_dst_tensor, const Tensor& src, const OptionalTensor& weight,
                 const OptionalTensor& running_mean, const OptionalTensor& running_var,
                 const OptionalTensor& save_mean, const OptionalTensor& save_invstd,
                 const bool train, const double epsilon, const std::array<bool, 3> output_mask) {
  const auto [diff_src_wanted, diff_gamma_wanted, diff_beta_wanted] = output_mask;
  if (!diff_src_wanted) throw Unsupported("gradients of the parameters alone");
  check_epsilon(epsilon);
  const Source source = read_like_pytorch(src);
  const std::int64_t channels = source.geometry.channels;
  Inputs inputs;
  inputs[Input::gamma] = optional_vector(weight, channels);
  inputs[Input::mean] = optional_vector(train ? save_mean : running_mean, channels);
  inputs[Input::variance] = optional_vector(train ? save_invstd : running_var, channels);
  if (inputs[Input::mean] == nullptr || inputs[Input::variance] == nullptr) {
    throw Unsupported("absent statistics");
  }
  const InLayoutOfSource diff_dst = in_layout_of(source, diff_dst_tensor);
  inputs[Input::diff_dst] = diff_dst.data;
  // The saved value contains epsilon.
  auto [diff_src, diff_gamma, diff_beta, diff_residual] =
      compute_backward(source, inputs, {}, train ? Statistics::batch : Statistics::frozen,
                       train ? 0 : epsilon, diff_gamma_wanted || diff_beta_wanted);
  if (!diff_gamma_wanted) diff_gamma = make(api->undefined);
  if (!diff_beta_wanted) diff_beta = make(api->undefined);
  return Results<3>{std::move(diff_src), std::move(diff_gamma), std::move(diff_beta)};
}

struct Op {
  const char* name;
  Kernel* kernel;
  Kernel* pytorchs;
};

template <bool is_forward, auto pytorch, auto ours>
constexpr Op op(const char* const name) {
  return {name, &kernel<is_forward, pytorch, ours>, &pytorchs_kernel<pytorch>};
}

constexpr std::array ops = {
    op<true, &CpuKernels::forward, &forward>("native_batch_norm"),
    op<true, &CpuKernels::forward_legit, &forward_legit>("_native_batch_norm_legit"),
    op<true, &CpuKernels::forward_no_stats, &forward_no_stats>("_native_batch_norm_legit.no_stats"),
    op<false, &CpuKernels::backward, &backward>("native_batch_norm_backward")};

}  // namespace

void register_pytorchs_kernels(const char* const library) {
  cpu_kernels();  // looked up now: a child that is forked meanwhile would wait for it
  for (const Op& op : ops) add_kernels(library, {{op.name, op.pytorchs}});
}

void override_pytorch(const std::vector<std::string>& names) {
  for (const Op& op : ops) {
    if (std::find(names.begin(), names.end(), op.name) != names.end()) {
      add_kernels("aten", {{op.name, op.kernel}});
    }
  }
}

std::uint64_t begin_use() noexcept { return uses.fetch_add(1) / period; }

void end_use(const std::uint64_t number) noexcept {
  std::uint64_t now = uses.load();
  while (now / period == number && !uses.compare_exchange_weak(now, now - 1)) continue;
  if (!in_use()) stop_keeping_blocks();
}

void end_all_uses() noexcept {
  std::uint64_t now = uses.load();
  while (!uses.compare_exchange_weak(now, (now / period + 1) * period)) continue;
  stop_keeping_blocks();
}

bool in_use() noexcept { return uses.load(std::memory_order_relaxed) % period != 0; }

}  // namespace onedsl::torch
