#include "onedsl_ops.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "call_log.hpp"
#include "compute.hpp"

// The kernels of onedsl's ops, which onedsl/torch/_operators.py defines. They have no kernels of
// PyTorch to call instead, so unsupported arguments are errors.
namespace onedsl::torch {

void reject(const std::string& reason) {
  throw std::invalid_argument("onedsl's operators do not support " + reason);
}

void reject(const ArgumentNames& names, const Rejection& found) {
  const bool is_input = found.port.kind == AnyPort::input;
  const std::string name = is_input ? " (" + std::string(names[found.port.index]) + ")" : "";
  reject(unsupported(found) + name);
}

void check_arguments(const ArgumentNames& names, TensorCall& call) {
  CallRules rules = rules_of(call.operation);
  rules.statistics_like_src = false;
  // A gradient needs no values, and other parts of a batch have more.
  if (!signature_of(call.operation).is_forward() || call.pass != Pass::both) rules.min_values = 0;
  if (const auto found = check_call(rules, present(call.tensors), &empty_like_strides, call)) {
    reject(names, *found);
  }
}

OwnedTensor copy_of(const std::optional<View>& vector, const std::int64_t length,
                    const float absent) {
  OwnedTensor copy = empty_vector(length);
  if (vector) {
    std::copy_n(reinterpret_cast<const float*>(vector->data), length, memory_of(*copy));
  } else {
    std::fill_n(memory_of(*copy), length, absent);
  }
  return copy;
}

namespace {

using OptionalText = std::optional<std::string>;

// The activation of a call, and its parameter.
struct Activated {
  Activated(const OptionalText& id, const std::optional<double> own_parameter)
      : parameter(own_parameter) {
    if (!id) {
      if (parameter) reject("a parameter without an activation");
      return;
    }
    const std::optional<Activation> found = activation_of(*id);
    if (!found || found == Activation::none) reject("activation=\"" + *id + "\"");
    activation = *found;
    if (!is_valid_parameter(activation, parameter)) {
      reject("a parameter of " + *id + " of this value");
    }
  }

  explicit operator bool() const noexcept { return activation != Activation::none; }
  bool is_relu() const noexcept { return activation == Activation::relu; }

  // The configuration of a call of an operation, or of the one with an activation.
  OpConfig config(const Operation alone, const Operation with_activation) const noexcept {
    OpConfig config;
    config.operation = *this ? with_activation : alone;
    config.variance_kind = VarianceKind::inverse_stddev;
    if (*this) config.attributes.set_activation(activation, parameter);
    return config;
  }

  // As reports describe a call.
  std::string description(const bool has_addition, const TensorCall& call) const {
    if (!*this) return with_copies("onedsl compiled alone", call);
    const std::string with = has_addition ? "onedsl with addition and " : "onedsl with ";
    return with_copies((with + info_of(activation).name).c_str(), call);
  }

  Activation activation = Activation::none;
  std::optional<double> parameter;
};

// Returns dst, the batch's mean, 1 / sqrt(variance + epsilon), and the unbiased variance, from
// which the caller updates running statistics; with an activation also the weight and the bias from
// which the gradient recomputes its argument.
Results<6> onedsl_forward(const Tensor& src, const OptionalTensor& weight,
                          const OptionalTensor& bias, const OptionalTensor& residual,
                          const double epsilon, const OptionalText& activation,
                          const std::optional<double> parameter) {
  const Activated activated(activation, parameter);
  const bool has_residual = pointer_to(residual) != nullptr;
  if (has_residual && !activated) reject("an addition without an activation");
  OpConfig config = activated.config(Operation::forward_training, Operation::act_forward_training);
  config.attributes.epsilon = epsilon;
  TensorCall call = forward_call(config, src, weight, bias, {}, {});
  call.tensors[Input::residual] = pointer_to(residual);
  check_arguments(forward_names, call);
  Results<6> results;
  auto& [dst, mean, inverse_stddev, variance, kept_weight, kept_bias] = results;
  auto& in = call.in;
  variance = empty_vector(call.geometry.channels);
  kept_weight = copy_of(in[Input::gamma], activated ? call.geometry.channels : 0, 1);
  kept_bias = copy_of(in[Input::beta], activated ? call.geometry.channels : 0, 0);
  if (activated) {
    // Another thread may change the parameters meanwhile.
    if (in[Input::gamma]) in[Input::gamma]->data = memory_of<char>(*kept_weight);
    if (in[Input::beta]) in[Input::beta]->data = memory_of<char>(*kept_bias);
  }
  Results<3> computed = compute_forward(call, {nullptr, memory_of(*variance)});
  std::move(computed.begin(), computed.end(), results.begin());
  const std::string description = activated.description(has_residual, call);
  log_call({true, description.c_str(), nullptr}, [&](LoggedCall& logged) {
    logged.shape = shape_of(src);
    logged.addresses = {address_of(weight), address_of(bias)};
    logged.results = {address_of(*mean)};
  });
  return results;
}

// Returns diff_src, diff_weight, diff_bias, and with `residual` or `dst` the gradient of the
// residual. The argument of the activation is recomputed from src, forward_weight, forward_bias and
// residual, unless dst has the mask of a ReLU.
Results<4> onedsl_backward(const Tensor& diff_dst, const Tensor& src, const Tensor& mean,
                           const Tensor& inverse_stddev, const OptionalTensor& weight,
                           const OptionalTensor& forward_weight, const OptionalTensor& forward_bias,
                           const OptionalTensor& residual, const OptionalTensor& dst,
                           const OptionalText& activation, const std::optional<double> parameter) {
  const Activated nothing({}, {});
  const Activated activated(activation, parameter);
  const bool has_residual = pointer_to(residual) != nullptr;
  const bool has_dst = pointer_to(dst) != nullptr;
  const bool has_addition = has_residual || has_dst;
  if (has_addition && !activated) reject("an addition without an activation");
  const auto checked_call = [&](const Activated& with, const Tensor& diff, const Tensor& own_src,
                                const OptionalTensor& gamma, const bool with_diff_residual) {
    const OpConfig config =
        with.config(Operation::training_backward, Operation::act_training_backward);
    TensorCall call = backward_call(config, diff, own_src, gamma, &mean, &inverse_stddev);
    if (with) {
      call.tensors[Input::beta] = pointer_to(forward_bias);
      call.tensors[Input::residual] = pointer_to(residual);
      call.tensors[Input::dst] = pointer_to(dst);
    }
    if (with_diff_residual) call.outputs.add(Output::diff_residual);
    check_arguments(backward_names, call);
    return call;
  };
  const bool recomputes = activated && !has_dst;
  TensorCall call =
      checked_call(activated, diff_dst, src, recomputes ? forward_weight : weight, has_addition);
  OwnedTensor diff;
  if (recomputes) {
    // Of the copies, if the call has some.
    TensorCall alone = checked_call(nothing, *call.tensors[Input::diff_dst],
                                    *call.tensors[Input::src], weight, false);
    const std::optional<View>& before = call.in[Input::gamma];
    const std::optional<View>& now = alone.in[Input::gamma];
    if (now && !(before && std::equal(now->data, now->data + now->bytes(), before->data))) {
      // The program changed the weight by `.data`, which autograd does not notice. In PyTorch, the
      // gradient of batch norm then has the new weight, and the activation's the forward pass's.
      call = checked_call(activated, diff_dst, src, forward_weight, true);
      diff = std::move(compute_backward(call, true).back());
      call = checked_call(nothing, *diff, src, weight, false);
    }
  }
  Results<4> results = compute_backward(call, true);
  if (diff) results.back() = std::move(diff);
  if (!has_addition) results.back() = empty_vector(0);
  const std::string description = activated.description(has_addition, call);
  log_call({false, description.c_str(), nullptr}, [&](LoggedCall& logged) {
    logged.shape = shape_of(src);
    logged.addresses = {address_of(weight)};
    logged.source = address_of(mean);
  });
  return results;
}

// PyTorch's operator by another name. _operators.py explains what differs.
void onedsl_convolution_backward(Value* const values, std::uint64_t, std::uint64_t) {
  throw_if(api->call("aten::convolution_backward", "", values, oldest_version));
}

}  // namespace

bool register_onedsl_ops() {
  load();
  static std::atomic<bool> registered{false};
  if (registered.exchange(true)) return false;
  add_kernels("onedsl", {{"batch_norm_training", &onedsl_kernel<&onedsl_forward>},
                         {"batch_norm_training_backward", &onedsl_kernel<&onedsl_backward>},
                         {"convolution_backward", &onedsl_convolution_backward}});
  register_pass_ops();
  return true;
}

}  // namespace onedsl::torch
