#include "overrides.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <variant>

#include "call_log.hpp"
#include "compute.hpp"

namespace onedsl::torch {
namespace {

// The number of uses, plus `period` for each time that all of them were ended: `enable` after
// `disable` inside of a `with` block holds after the block. A single number needs no lock, for
// which a forked child or a signal handler would wait forever.
std::atomic<std::uint64_t> uses = 0;
constexpr std::uint64_t period = std::uint64_t{1} << 32;

struct Computed {
  Results<3> results;
  std::string description;  // for reports
};

// What `ours` computed, or why it does not compute the call.
using Outcome = std::variant<Computed, const char*>;

// Logs a call of an op: what onedsl computed, or null and why not. `mean` is a result of the
// forward pass, or null.
template <bool is_forward, class... Arguments>
void log_op(const char* const computed, const char* const reason, const Tensor* const mean,
            const Arguments&... arguments) {
  log_call({is_forward, computed, reason}, [&](LoggedCall& call) {
    // Forward: src, weight, bias, running_mean, ... Gradient: diff_dst, src, weight, running_mean,
    // running_var, mean, ...
    const auto all = std::tie(arguments...);
    const auto address = [&](const void* const found) {  // in evaluation, of the running mean
      return found != nullptr ? found : address_of(std::get<3>(all));
    };
    call.shape = shape_of(std::get<is_forward ? 0 : 1>(all));
    call.addresses = {address_of(arguments)...};
    call.source = address(address_of(std::get<is_forward ? 3 : 5>(all)));
    if (mean != nullptr) call.results = {address(address_of(*mean))};
  });
}

// The kernel that is registered for an op of PyTorch: `ours`, or PyTorch's own if that does not
// support the arguments.
template <bool is_forward, auto pytorch, auto ours>
void kernel(Value* const values, std::uint64_t, std::uint64_t) {
  with_arguments(values, ours, [&](const auto&... arguments) {
    const auto pytorchs = [&] { return call<3>(cpu_kernels().*pytorch, arguments...); };
    if (!in_use()) return write_results(values, pytorchs());
    Outcome outcome = with_pytorchs_errors([&] { return ours(arguments...); });
    if (auto* const computed = std::get_if<Computed>(&outcome)) {
      const Tensor* const mean = is_forward ? computed->results[1].get() : nullptr;
      log_op<is_forward>(computed->description.c_str(), nullptr, mean, arguments...);
      return write_results(values, std::move(computed->results));
    }
    const char* const reason = std::get<const char*>(outcome);
    try {
      Results<3> results = pytorchs();
      const Tensor* const mean = is_forward ? results[1].get() : nullptr;
      log_op<is_forward>(nullptr, reason, mean, arguments...);
      write_results(values, std::move(results));
    } catch (...) {
      log_op<is_forward>(nullptr, reason, nullptr, arguments...);
      throw;
    }
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

Outcome forward(const Tensor& src, const OptionalTensor& weight, const OptionalTensor& bias,
                const OptionalTensor& running_mean, const OptionalTensor& running_var,
                const bool training, const double momentum, const double epsilon) {
  if (!training) return "the forward pass of evaluation";
  OpConfig config;
  config.operation = Operation::forward_training;
  config.attributes.epsilon = epsilon;
  config.variance_kind = VarianceKind::inverse_stddev;
  TensorCall call = forward_call(config, src, weight, bias, running_mean, running_var);
  // PyTorch's kernel updates the running statistics before it reads the other arguments.
  if (call.tensors[Input::mean] != nullptr) call.outputs.add(Output::running_mean);
  if (call.tensors[Input::variance] != nullptr) call.outputs.add(Output::running_variance);
  if (const auto rejection =
          check_call(rules_of(config.operation), input_tensors, &pytorch_strides, call)) {
    return unsupported(*rejection);
  }
  Running running;
  if (call.outputs.has(Output::running_mean)) {
    running = {memory_of(*running_mean), memory_of(*running_var), momentum};
  }
  Results<3> results = compute_forward(call, running);
  return Computed{std::move(results), with_copies("onedsl eager", call)};
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

Outcome backward(const Tensor& diff_dst, const Tensor& src, const OptionalTensor& weight,
                 const OptionalTensor& running_mean, const OptionalTensor& running_var,
                 const OptionalTensor& save_mean, const OptionalTensor& save_invstd,
                 const bool train, const double epsilon, const std::array<bool, 3> output_mask) {
  const auto [diff_src_wanted, diff_gamma_wanted, diff_beta_wanted] = output_mask;
  if (!diff_src_wanted) return "gradients of the parameters alone";
  OpConfig config;
  config.operation = Operation::training_backward;
  config.attributes.epsilon = epsilon;
  config.statistics_kind = train ? StatisticsKind::batch : StatisticsKind::frozen;
  config.variance_kind = train ? VarianceKind::inverse_stddev : VarianceKind::variance;
  TensorCall call =
      backward_call(config, diff_dst, src, weight, pointer_to(train ? save_mean : running_mean),
                    pointer_to(train ? save_invstd : running_var));
  const CallRules rules = rules_of(config.operation);
  if (const auto rejection = check_call(rules, input_tensors, &pytorch_strides, call)) {
    return unsupported(*rejection);
  }
  // PyTorch's kernel rejects these although it does not read them.
  for (const OptionalTensor* const unread :
       {train ? &running_mean : &save_mean, train ? &running_var : &save_invstd}) {
    const Tensor* const tensor = pointer_to(*unread);
    if (tensor != nullptr && (get(api->type, tensor) != api->f32 || get(api->rank, tensor) != 1)) {
      return "statistics that are not vectors of float32";
    }
  }
  auto [diff_src, diff_gamma, diff_beta, diff_residual] =
      compute_backward(call, diff_gamma_wanted || diff_beta_wanted);
  if (!diff_gamma_wanted) diff_gamma = make(api->undefined);
  if (!diff_beta_wanted) diff_beta = make(api->undefined);
  return Computed{{std::move(diff_src), std::move(diff_gamma), std::move(diff_beta)},
                  with_copies("onedsl eager", call)};
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

std::vector<std::string> overridden_ops() {
  std::vector<std::string> names;
  for (const Op& op : ops) names.emplace_back(op.name);
  return names;
}

void register_pytorchs_kernels(const char* const library) {
  load();
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
}

void end_all_uses() noexcept {
  std::uint64_t now = uses.load();
  while (!uses.compare_exchange_weak(now, (now / period + 1) * period)) continue;
}

bool in_use() noexcept { return uses.load(std::memory_order_relaxed) % period != 0; }

}  // namespace onedsl::torch
