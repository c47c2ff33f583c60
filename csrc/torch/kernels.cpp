#include "kernels.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "../core/logging_enabled.hpp"
#include "../core/pytorch_statistics.hpp"
#include "../plan/cache.hpp"
#include "tensors.hpp"

namespace onedsl::torch {
namespace {

std::atomic<bool> in_use = false;
LoggedRun logged_run = nullptr;

// An argument of an op, which the kernel owns, by the parameter type of PyTorch's own kernel.
template <class Parameter>
class Argument;

class TensorArgument {
 public:
  explicit TensorArgument(const Value value) noexcept : handle_(reinterpret_cast<Tensor*>(value)) {}
  Tensor& get() const noexcept { return *handle_; }

 private:
  OwnedTensor handle_;
};

template <>
class Argument<const Tensor&> : public TensorArgument {
  using TensorArgument::TensorArgument;
};

template <>
class Argument<Tensor&> : public TensorArgument {
  using TensorArgument::TensorArgument;
};

template <>
class Argument<const OptionalTensor&> {
 public:
  explicit Argument(const Value value) noexcept : pointer_(reinterpret_cast<Value*>(value)) {
    if (!pointer_) return;
    handle_.reset(reinterpret_cast<Tensor*>(*pointer_));
    tensor_.emplace(*handle_);
  }
  const OptionalTensor& get() const noexcept { return tensor_; }

 private:
  std::unique_ptr<Value> pointer_;
  OwnedTensor handle_;
  OptionalTensor tensor_;
};

template <>
class Argument<bool> {
 public:
  explicit Argument(const Value value) noexcept : value_((value & 0xff) != 0) {}
  bool get() const noexcept { return value_; }

 private:
  bool value_;
};

template <>
class Argument<double> {
 public:
  explicit Argument(const Value value) noexcept { std::memcpy(&value_, &value, sizeof value_); }
  double get() const noexcept { return value_; }

 private:
  double value_ = 0;
};

struct DeleteList {
  void operator()(List* const list) const noexcept { api.delete_list(list); }
};

template <>
class Argument<std::array<bool, 3>> {
 public:
  explicit Argument(const Value value) noexcept : handle_(reinterpret_cast<List*>(value)) {}
  std::array<bool, 3> get() const {
    std::array<bool, 3> flags = {};
    for (std::size_t i = 0; i < flags.size(); ++i) {
      Value item = 0;
      check(api.list_item(handle_.get(), i, &item));
      flags[i] = Argument<bool>(item).get();
    }
    return flags;
  }

 private:
  std::unique_ptr<List, DeleteList> handle_;
};

template <std::size_t count>
using Results = std::array<OwnedTensor, count>;

// Calls a kernel of PyTorch and moves its results into handles, which are allocated before the call
// so that nothing can fail after it.
template <class... Outputs, class... Parameters, class... Arguments>
Results<sizeof...(Outputs)> call(std::tuple<Outputs...> (*const kernel)(Parameters...),
                                 const Arguments&... arguments) {
  Results<sizeof...(Outputs)> handles;
  for (OwnedTensor& handle : handles) handle = undefined();
  const std::tuple<Outputs...> tensors = kernel(arguments.get()...);
  OwnedTensor* next = handles.data();
  std::apply([&](const auto&... tensor) { (((*next++)->impl = tensor.impl), ...); }, tensors);
  return handles;
}

template <class Ours, class... Outputs, class... Parameters, std::size_t... index>
void run(Value* const values, std::tuple<Outputs...> (*const pytorch)(Parameters...),
         const Ours& ours, std::index_sequence<index...>) {
  const std::tuple<Argument<Parameters>...> arguments(values[index]...);
  std::optional<Results<sizeof...(Outputs)>> results;
  if (in_use.load(std::memory_order_relaxed)) results = ours(std::get<index>(arguments).get()...);
  if (!results) results = call(pytorch, std::get<index>(arguments)...);
  for (std::size_t i = 0; i < results->size(); ++i) {
    values[i] = reinterpret_cast<Value>((*results)[i].release());
  }
}

template <class... Outputs, class... Parameters, class Ours>
void run(Value* const values, std::tuple<Outputs...> (*const pytorch)(Parameters...),
         const Ours& ours) {
  run(values, pytorch, ours, std::index_sequence_for<Parameters...>());
}

// The kernel that is registered for an op: `ours`, or PyTorch's own where that returns nothing.
template <auto pytorch, auto ours>
void kernel(Value* const values, std::uint64_t, std::uint64_t) {
  run(values, cpu_kernels.*pytorch, ours);
}

// A vector of f32, one element per channel, which may be absent.
class Vector {
 public:
  Vector(const OptionalTensor& tensor, const std::int64_t channels) {
    // Autograd passes undefined tensors for absent ones.
    if (!tensor || !get(api.is_defined, &*tensor)) return;
    tensor_ = &*tensor;
    data_ = f32_vector(*tensor, channels);
  }
  bool is_supported() const { return tensor_ == nullptr || data_ != nullptr; }
  const float* data() const { return data_; }
  float* mutable_data() const { return memory_of(*tensor_); }

 private:
  const Tensor* tensor_ = nullptr;
  const float* data_ = nullptr;
};

std::optional<PlanKey> plan_key(const View& src, const Operation operation, const double epsilon) {
  if (src.rank < 2 || src.rank > max_rank || !is_contiguous_or_channels_last(src) ||
      !std::isfinite(epsilon) || epsilon <= 0) {
    return std::nullopt;
  }
  const auto item_size = static_cast<std::ptrdiff_t>(size_of(src.type));
  const std::optional<Geometry> geometry =
      dense_geometry(src.rank, src.sizes, src.strides, 1, item_size, KeptAxes{1} << 1);
  if (!geometry || geometry->elements() <= geometry->statistics()) return std::nullopt;
  OpConfig config;
  config.operation = operation;
  config.attributes.epsilon = epsilon;
  return make_key(config, *geometry, src.type, DataType::f32, {}, signature_of(operation).outputs);
}

void execute(const PlanKey& key, const Ports& ports) {
  const std::shared_ptr<const Plan> plan = find_plan(key);
  if (logging_enabled.load(std::memory_order_relaxed)) return logged_run(*plan, ports);
  plan->execute(ports);
}

std::optional<Results<3>> forward(const Tensor& src_tensor, const OptionalTensor& weight_tensor,
                                  const OptionalTensor& bias_tensor,
                                  const OptionalTensor& running_mean_tensor,
                                  const OptionalTensor& running_var_tensor, const bool training,
                                  const double momentum, const double epsilon) {
  if (!training) return std::nullopt;
  const std::optional<View> src = view(src_tensor);
  if (!src) return std::nullopt;
  const std::optional<PlanKey> key = plan_key(*src, Operation::forward_training, epsilon);
  if (!key) return std::nullopt;
  const std::int64_t channels = src->sizes[1];
  const Vector weight(weight_tensor, channels);
  const Vector bias(bias_tensor, channels);
  const Vector running_mean(running_mean_tensor, channels);
  const Vector running_var(running_var_tensor, channels);
  const bool any_vector = weight.data() != nullptr || bias.data() != nullptr ||
                          running_mean.data() != nullptr || running_var.data() != nullptr;
  // Without any f32 vector, PyTorch's statistics have the type of src.
  if (!(weight.is_supported() && bias.is_supported() && running_mean.is_supported() &&
        running_var.is_supported() && (src->type == DataType::f32 || any_vector)) ||
      (running_mean.data() == nullptr) != (running_var.data() == nullptr)) {
    return std::nullopt;
  }

  Results<3> results = {empty_like(*src), empty_vector(channels), empty_vector(channels)};
  const auto& [dst, mean, inverse_stddev] = results;
  auto* const batch_mean = memory_of(*mean);
  auto* const batch_variance = memory_of(*inverse_stddev);
  const auto length = static_cast<std::size_t>(channels);
  const bool affine = weight.data() != nullptr || bias.data() != nullptr;
  // Zeros, ones, and the running statistics of oneDNN's formula, which PyTorch does not use.
  std::vector<float> scratch(4 * length);
  float* const zeros = scratch.data();
  float* const ones = zeros + length;
  if (affine && weight.data() == nullptr) std::fill_n(ones, length, 1.0F);
  Ports ports;
  ports.in[Input::src] = src->data;
  ports.in[Input::mean] = ports.in[Input::variance] = zeros;
  if (affine) {  // the op requires both or neither
    ports.in[Input::gamma] = weight.data() != nullptr ? weight.data() : ones;
    ports.in[Input::beta] = bias.data() != nullptr ? bias.data() : zeros;
  }
  ports.out[Output::dst] = memory_of<void>(*dst);
  ports.out[Output::running_mean] = zeros + 2 * length;
  ports.out[Output::running_variance] = zeros + 3 * length;
  ports.out[Output::batch_mean] = batch_mean;
  ports.out[Output::batch_variance] = batch_variance;
  execute(*key, ports);
  if (running_mean.data() != nullptr) {
    update_running(running_mean.mutable_data(), running_var.mutable_data(), batch_mean,
                   batch_variance, channels, momentum,
                   static_cast<double>(key->problem.geometry.per_statistic()));
  }
  to_inverse_stddev(batch_variance, channels, epsilon);
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
  OwnedTensor copy_of_diff_dst;
  Ports ports;
  ports.in[Input::src] = src->data;
  ports.in[Input::diff_dst] = diff_dst->data;
  if (!same_strides(*src, *diff_dst)) {
    copy_of_diff_dst = empty_like(*src);
    check(api.copy(copy_of_diff_dst.get(), &diff_dst_tensor, 0));
    ports.in[Input::diff_dst] = memory_of<void>(*copy_of_diff_dst);
  }
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

void register_kernels(const LoggedRun run) {
  load();
  logged_run = run;
  // The library is never deleted: PyTorch's dispatcher cannot remove a kernel safely while other
  // threads call it.
  Library* library = nullptr;
  check(api.make_library("aten", "CPU", "onedsl/csrc/torch/kernels.cpp", 0, &library));
  const auto add = [&](const char* const op, Kernel* const kernel) {
    check(api.add_kernel(library, op, kernel, oldest_version));
  };
  add("native_batch_norm", &kernel<&CpuKernels::native_batch_norm, &forward>);
  add("_native_batch_norm_legit", &kernel<&CpuKernels::legit, &forward_legit>);
  add("_native_batch_norm_legit.no_stats", &kernel<&CpuKernels::legit_no_stats, &forward_no_stats>);
  add("_batch_norm_with_update", &kernel<&CpuKernels::with_update, &forward_with_update>);
  add("native_batch_norm_backward", &kernel<&CpuKernels::native_batch_norm_backward, &backward>);
  add("batch_norm_backward", &kernel<&CpuKernels::batch_norm_backward, &backward_with_reserve>);
}

void use_kernels(const bool use) noexcept { in_use.store(use, std::memory_order_relaxed); }

}  // namespace onedsl::torch
