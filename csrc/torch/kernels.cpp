#include "kernels.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "../core/logging_enabled.hpp"
#include "../core/pytorch_statistics.hpp"
#include "../core/threads.hpp"
#include "../plan/cache.hpp"
#include "tensors.hpp"

namespace onedsl::torch {
namespace {

double number(const abi::Value value) {
  double result = 0;
  std::memcpy(&result, &value, sizeof result);
  return result;
}
bool flag(const abi::Value value) { return (value & 0xff) != 0; }
abi::Tensor* tensor(const abi::Value value) { return reinterpret_cast<abi::Tensor*>(value); }
abi::List* list(const abi::Value value) { return reinterpret_cast<abi::List*>(value); }
abi::Value* optional(const abi::Value value) { return reinterpret_cast<abi::Value*>(value); }

// Null also for the undefined tensors that autograd passes.
abi::Tensor* tensor_if_any(const abi::Value value) {
  if (value == 0) return nullptr;
  abi::Tensor* const found = tensor(*optional(value));
  return get(api().is_defined, found) ? found : nullptr;
}

// A kernel's arguments, which are its own to delete. By their kinds: a tensor, an optional one (?),
// a list, a plain value (.).
class Arguments {
 public:
  Arguments(const abi::Value* const values, const char* const kinds) : kinds_(kinds) {
    std::copy_n(values, std::strlen(kinds), values_.begin());
  }
  ~Arguments() {
    for (std::size_t i = 0; kinds_[i] != 0; ++i) {
      if (kinds_[i] == 'T') api().delete_tensor(tensor(values_[i]));
      if (kinds_[i] == 'L') api().delete_list(list(values_[i]));
      if (kinds_[i] == '?' && values_[i] != 0) {
        api().delete_tensor(tensor(*optional(values_[i])));
        delete optional(values_[i]);
      }
    }
  }
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

 private:
  const char* kinds_;
  std::array<abi::Value, 10> values_ = {};
};

void give(abi::Value& result, Owned tensor) {
  result = reinterpret_cast<abi::Value>(tensor.release());
}

// What both kernels want of src, and how they run on it.
struct Source {
  View src;
  PlanKey key;

  std::int64_t channels() const { return src.sizes[1]; }
  Owned empty_like_src() const { return empty_like(src, key.problem.geometry.elements()); }
  void run(const Ports& ports) const { find_plan(key)->execute(ports); }
};

std::optional<Source> source(abi::Tensor* const argument, const Operation operation,
                             const double epsilon) {
  const std::optional<View> src = view(argument);
  if (!src || src->rank < 2 || src->rank > max_rank || !is_laid_out(*src)) return std::nullopt;
  if (!(std::isfinite(epsilon) && epsilon > 0)) return std::nullopt;
  const auto item_size = static_cast<std::ptrdiff_t>(size_of(src->type));
  const std::optional<Geometry> geometry =
      dense_geometry(src->rank, src->sizes, src->strides, 1, item_size, KeptAxes{1} << 1);
  if (!geometry || geometry->elements() <= geometry->statistics()) return std::nullopt;
  Source result{*src, {}};
  result.key.problem.operation = operation;
  result.key.problem.geometry = *geometry;
  result.key.problem.data = src->type;
  result.key.problem.attributes.epsilon = epsilon;
  result.key.problem.outputs = signature_of(operation).outputs;
  result.key.num_threads = max_threads();
  result.key.fork_generation = fork_generation();
  return result;
}

thread_local std::optional<std::string> failure;

// Gives the call to the op of the same arguments whose kernel is written in Python.
void fall_back(const char* const op, abi::Value* const values) {
  failure.reset();
  const abi::Error error = api().call(op, "", values, abi::version);
  if (failure) throw std::runtime_error(*failure);
  check(error);
}

// PyTorch's own kernel, which can be called under this name, on plain arguments. What it gives back
// are its last arguments, and those must be alive elsewhere: PyTorch drops the arguments first.
void evaluate(abi::Value* const values, const Source& source) {
  std::array<Owned, 3> results = {source.empty_like_src(), empty_vector(0), empty_vector(0)};
  std::array<abi::Value, 11> all = {};
  std::copy_n(values, 8, all.begin());
  for (std::size_t i = 0; i < 3; ++i) give(all[8 + i], another(results[i].get()));
  check(api().call("aten::native_batch_norm", "out", all.data(), abi::version));
  for (std::size_t i = 0; i < 3; ++i) {
    const Owned given_back(tensor(all[i]));
    give(values[i], std::move(results[i]));
  }
}

// src, weight, bias, running_mean, running_var, training, momentum, eps
void forward(abi::Value* const values, std::uint64_t, std::uint64_t) {
  const auto fall_back_forward = [&] { fall_back("onedsl::_native_batch_norm", values); };
  if (logging_enabled.load(std::memory_order_relaxed)) return fall_back_forward();
  const bool training = flag(values[5]);
  const double momentum = number(values[6]);
  const double epsilon = number(values[7]);
  std::optional<Source> s = source(tensor(values[0]), Operation::forward_training, epsilon);
  if (!s) return fall_back_forward();
  const std::int64_t channels = s->channels();
  // Weight and bias, and the running statistics: both or none.
  std::array<const float*, 4> given = {};
  std::array<abi::Tensor*, 4> tensors = {};
  for (std::size_t i = 0; i < given.size(); ++i) {
    tensors[i] = tensor_if_any(values[1 + i]);
    if (tensors[i] == nullptr) continue;
    given[i] = channels_of(tensors[i], channels);
    if (given[i] == nullptr) return fall_back_forward();
  }
  const auto [weight, bias, running_mean, running_variance] = given;
  const bool plain = s->src.type == DataType::f32 || weight != nullptr || running_mean != nullptr;
  if (!plain || (weight == nullptr) != (bias == nullptr) ||
      (running_mean == nullptr) != (running_variance == nullptr)) {
    return fall_back_forward();
  }
  if (!training) {
    // PyTorch has no mixed types without a weight.
    const bool known =
        running_mean != nullptr && (s->src.type == DataType::f32 || weight != nullptr);
    return known ? evaluate(values, *s) : fall_back_forward();
  }

  const Arguments arguments(values, "T????...");
  Owned dst = s->empty_like_src();
  Owned mean = empty_vector(channels);
  Owned variance_kind = empty_vector(channels);
  float* const batch_mean = memory_of(mean.get());
  float* const batch_variance = memory_of(variance_kind.get());
  // oneDNN's running statistics are not PyTorch's: nobody looks at these.
  const auto length = static_cast<std::size_t>(channels);
  std::vector<float> unused(3 * length);
  Ports ports;
  ports.in[Input::src] = s->src.data;
  ports.in[Input::mean] = ports.in[Input::variance] = unused.data();
  ports.in[Input::gamma] = weight;
  ports.in[Input::beta] = bias;
  ports.out[Output::dst] = memory_of<void>(dst.get());
  ports.out[Output::running_mean] = &unused[length];
  ports.out[Output::running_variance] = &unused[2 * length];
  ports.out[Output::batch_mean] = batch_mean;
  ports.out[Output::batch_variance] = batch_variance;
  s->run(ports);
  if (running_mean != nullptr) {
    const auto count = static_cast<double>(s->key.problem.geometry.per_statistic());
    update_running(memory_of(tensors[2]), memory_of(tensors[3]), batch_mean, batch_variance,
                   channels, momentum, count);
  }
  to_inverse_stddev(batch_variance, channels, epsilon);
  give(values[0], std::move(dst));
  give(values[1], std::move(mean));
  give(values[2], std::move(variance_kind));
}

std::array<bool, 3> mask_of(abi::List* const list) {
  std::array<bool, 3> mask = {};
  for (std::size_t i = 0; i < mask.size(); ++i) {
    abi::Value value = 0;
    check(api().list_item(list, i, &value));
    mask[i] = flag(value);
  }
  return mask;
}

// diff_dst, src, weight, running_mean, running_var, save_mean, save_invstd, train, eps, output_mask
void backward(abi::Value* const values, std::uint64_t, std::uint64_t) {
  const auto fall_back_backward = [&] { fall_back("onedsl::_native_batch_norm_backward", values); };
  const auto [diff_src_wanted, diff_gamma_wanted, diff_beta_wanted] = mask_of(list(values[9]));
  if (logging_enabled.load(std::memory_order_relaxed) || !diff_src_wanted) return fall_back_backward();
  std::optional<Source> s =
      source(tensor(values[1]), Operation::training_backward, number(values[8]));
  const std::optional<View> diff_dst = view(tensor(values[0]));
  if (!s || !diff_dst || !same_layout(s->src, *diff_dst)) return fall_back_backward();
  const std::int64_t channels = s->channels();
  const bool train = flag(values[7]);
  abi::Tensor* const weight = tensor_if_any(values[2]);
  abi::Tensor* const mean = tensor_if_any(values[train ? 5 : 3]);
  abi::Tensor* const variance_kind = tensor_if_any(values[train ? 6 : 4]);
  if (mean == nullptr || variance_kind == nullptr) return fall_back_backward();
  Ports ports;
  ports.in[Input::src] = s->src.data;
  ports.in[Input::diff_dst] = diff_dst->data;
  ports.in[Input::mean] = channels_of(mean, channels);
  ports.in[Input::variance] = channels_of(variance_kind, channels);
  if (weight != nullptr) ports.in[Input::gamma] = channels_of(weight, channels);
  if (ports.in[Input::mean] == nullptr || ports.in[Input::variance] == nullptr ||
      (weight != nullptr && ports.in[Input::gamma] == nullptr)) {
    return fall_back_backward();
  }

  const Arguments arguments(values, "TT?????..L");
  Problem& problem = s->key.problem;
  if (train) {  // what is saved has epsilon in it
    problem.variance_kind = VarianceKind::inverse_stddev;
    problem.attributes.epsilon = 0;
  } else {
    problem.statistics = Statistics::frozen;
  }
  Owned diff_src = s->empty_like_src();
  Owned diff_gamma;
  Owned diff_beta;
  ports.out[Output::diff_src] = memory_of<void>(diff_src.get());
  if (diff_gamma_wanted || diff_beta_wanted) {
    diff_gamma = empty_vector(channels);
    diff_beta = empty_vector(channels);
    ports.out[Output::diff_gamma] = memory_of<void>(diff_gamma.get());
    ports.out[Output::diff_beta] = memory_of<void>(diff_beta.get());
  } else {
    problem.outputs = signature_of(problem.operation).required;
  }
  s->run(ports);
  give(values[0], std::move(diff_src));
  give(values[1], diff_gamma_wanted ? std::move(diff_gamma) : undefined());
  give(values[2], diff_beta_wanted ? std::move(diff_beta) : undefined());
}

}  // namespace

void DeleteLibrary::operator()(abi::Library* const library) const noexcept {
  api().delete_library(library);
}

Registration register_kernels() {
  if (abi::functions() == nullptr) return nullptr;
  abi::Library* made = nullptr;
  check(api().make_library("aten", "CPU", "onedsl/csrc/torch/kernels.cpp", 0, &made));
  Registration library(made);
  check(api().add_kernel(made, "native_batch_norm", &forward, abi::version));
  check(api().add_kernel(made, "native_batch_norm_backward", &backward, abi::version));
  return library;
}

void fail(std::string why) { failure = std::move(why); }

}  // namespace onedsl::torch
