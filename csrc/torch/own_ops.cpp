#include "own_ops.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "call_log.hpp"
#include "compute.hpp"
#include "kernels.hpp"

// The kernels of onedsl's ops, which onedsl/torch/_operators.py defines. They have no kernels of
// PyTorch to call instead, so unsupported arguments are errors.
namespace onedsl::torch {

void reject(const std::string& reason) {
  throw std::invalid_argument("onedsl's operators do not support " + reason);
}

void reject(const Names& names, const Rejection& found) {
  const bool is_input = found.port.kind == AnyPort::input;
  const std::string name = is_input ? " (" + std::string(names[found.port.index]) + ")" : "";
  reject(unsupported(found) + name);
}

void check_own(const Names& names, TensorCall& call) {
  CallRules rules = rules_of(call.operation);
  rules.statistics_like_src = false;
  if (call.pass != Pass::both) rules.min_values = 0;  // other parts have more
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

// Returns the configuration of a call with a ReLU, or without it. `addition` is the residual, or
// dst in the gradient.
OpConfig own_config(const Operation operation, const Operation with_relu, const bool relu,
                    const std::optional<double> clip, const OptionalTensor& addition) {
  if (clip && !(*clip > 0)) reject("a clip that is not positive");
  if (addition && !relu) reject("an addition without a ReLU");
  OpConfig config;
  config.operation = relu ? with_relu : operation;
  config.variance_kind = VarianceKind::inverse_stddev;
  if (relu) config.attributes.set_activation(Activation::relu, clip);
  return config;
}

const char* description(const bool relu, const bool addition) {
  if (!relu) return "onedsl compiled alone";
  return addition ? "onedsl with addition and ReLU" : "onedsl with ReLU";
}

TensorCall own_forward_call(const Tensor& src, const OptionalTensor& weight,
                            const OptionalTensor& bias, const OptionalTensor& residual,
                            const OptionalTensor& running_mean, const OptionalTensor& running_var,
                            const double epsilon, const bool relu,
                            const std::optional<double> clip) {
  OpConfig config = own_config(Operation::forward_training, Operation::act_forward_training, relu,
                               clip, residual);
  config.attributes.epsilon = epsilon;
  TensorCall call = forward_call(config, src, weight, bias, running_mean, running_var);
  call.tensors[Input::residual] = pointer_to(residual);
  check_own(forward_names, call);
  return call;
}

// Returns dst, the batch's mean, 1 / sqrt(variance + epsilon), and the new running statistics; then
// the weight and the bias from which the gradient recomputes the mask of the ReLU, if it does not
// need dst for the gradient of the residual.
Results<7> own_forward(const Tensor& src, const OptionalTensor& weight, const OptionalTensor& bias,
                       const OptionalTensor& residual, const OptionalTensor& running_mean,
                       const OptionalTensor& running_var, const double momentum,
                       const double epsilon, const bool relu, const std::optional<double> clip) {
  TensorCall call =
      own_forward_call(src, weight, bias, residual, running_mean, running_var, epsilon, relu, clip);
  Results<7> results;
  auto& [dst, mean, inverse_stddev, new_mean, new_variance, kept_weight, kept_bias] = results;
  auto& in = call.in;
  const bool updates = in[Input::mean].has_value();
  new_mean = copy_of(in[Input::mean], updates ? call.geometry.channels : 0);
  new_variance = copy_of(in[Input::variance], updates ? call.geometry.channels : 0);
  const bool keeps = relu && !residual;
  kept_weight = copy_of(in[Input::gamma], keeps ? call.geometry.channels : 0, 1);
  kept_bias = copy_of(in[Input::beta], keeps ? call.geometry.channels : 0, 0);
  if (keeps) {
    // Another thread may change the parameters meanwhile.
    if (in[Input::gamma]) in[Input::gamma]->data = memory_of<char>(*kept_weight);
    if (in[Input::beta]) in[Input::beta]->data = memory_of<char>(*kept_bias);
  }
  Running running;
  if (updates) running = {memory_of(*new_mean), memory_of(*new_variance), momentum};
  Results<3> computed = compute_forward(call, running);
  std::move(computed.begin(), computed.end(), results.begin());
  log_call({true, description(relu, residual.has_value()), nullptr}, [&](LoggedCall& logged) {
    logged.shape = shape_of(src);
    logged.addresses = {address_of(weight), address_of(bias), address_of(running_mean),
                        address_of(running_var)};
    logged.source = address_of(running_mean);
    logged.results = {address_of(*mean), address_of(*new_mean)};
  });
  return results;
}

// Returns diff_src, diff_weight, diff_bias, and with `dst` the gradient of the residual. The mask
// of a ReLU is computed from dst, or from src, forward_weight and forward_bias.
Results<4> own_backward(const Tensor& diff_dst, const Tensor& src, const Tensor& mean,
                        const Tensor& inverse_stddev, const OptionalTensor& weight,
                        const OptionalTensor& forward_weight, const OptionalTensor& forward_bias,
                        const OptionalTensor& dst, const double epsilon,
                        const std::optional<double> clip) {
  const bool relu = forward_weight || dst;
  const auto checked_call = [&](const OptionalTensor& gamma, const OptionalTensor& mask) {
    const OpConfig config = own_config(Operation::training_backward,
                                       Operation::relu_training_backward, relu, clip, mask);
    TensorCall call = backward_call(config, diff_dst, src, gamma, &mean, &inverse_stddev);
    if (relu) call.tensors[Input::beta] = pointer_to(forward_bias);
    call.tensors[Input::dst] = pointer_to(mask);
    if (mask) call.outputs.add(Output::diff_residual);
    check_own(backward_names, call);
    return call;
  };
  TensorCall call = checked_call(weight, dst);
  OwnedTensor recomputed;
  OptionalTensor mask;
  if (forward_weight && !dst) {
    TensorCall of_forward = checked_call(forward_weight, dst);
    const std::optional<View>& now = call.in[Input::gamma];
    const std::optional<View>& before = of_forward.in[Input::gamma];
    if (!now || std::equal(now->data, now->data + now->bytes(), before->data)) {
      call = std::move(of_forward);
    } else {
      // The program changed the weight by `.data`, which autograd does not notice. In PyTorch, the
      // gradient of batch norm then has the new weight, and the mask is the forward pass's.
      TensorCall forward =
          own_forward_call(src, forward_weight, forward_bias, {}, {}, {}, epsilon, true, clip);
      recomputed = std::move(compute_forward(forward, {}).front());
      mask.emplace(*recomputed);
      call = checked_call(weight, mask);
    }
  }
  Results<4> results = compute_backward(call, true);
  if (!dst) results[3] = empty_vector(0);
  log_call({false, description(relu, dst.has_value()), nullptr}, [&](LoggedCall& logged) {
    logged.shape = shape_of(src);
    logged.addresses = {address_of(weight)};
    logged.source = address_of(mean);
  });
  return results;
}

// PyTorch's operator by another name. _operators.py explains what differs.
void own_convolution_backward(Value* const values, std::uint64_t, std::uint64_t) {
  throw_if(api->call("aten::convolution_backward", "", values, oldest_version));
}

}  // namespace

void register_own_ops() {
  load();
  add_kernels("onedsl", {{"batch_norm_training", &own_kernel<&own_forward>},
                         {"batch_norm_training_backward", &own_kernel<&own_backward>},
                         {"convolution_backward", &own_convolution_backward}});
  register_pass_ops();
}

}  // namespace onedsl::torch
