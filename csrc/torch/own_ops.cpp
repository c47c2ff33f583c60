#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "call_log.hpp"
#include "compute.hpp"
#include "kernels.hpp"

// The kernels of onedsl's ops, which onedsl/torch/_operators.py defines. They have no kernels of
// PyTorch to call instead, so unsupported arguments are errors.
namespace onedsl::torch {
namespace {

template <auto op>
void own_kernel(Value* const values, std::uint64_t, std::uint64_t) {
  with_arguments(values, op, [&](const auto&... arguments) {
    try {
      write_results(values, op(arguments...));
    } catch (const Unsupported& unsupported) {
      throw std::invalid_argument("onedsl's operators do not support " +
                                  std::string(unsupported.what()));
    }
  });
}

// Reads src, or a dense copy of it if it is strided or unaligned. The copy has the strides of
// torch.empty_like.
Source read_or_copy(const Tensor& tensor) {
  try {
    return read_source(tensor);
  } catch (const Unsupported&) {
    OwnedTensor copy = make(api->clone, &tensor);
    Source source = read_source(*copy);
    source.copy = std::move(copy);
    return source;
  }
}

const char* description(const bool relu, const bool addition) {
  if (!relu) return "onedsl compiled alone";
  return addition ? "onedsl with addition and ReLU" : "onedsl with ReLU";
}

// Returns dst, the batch's mean, 1 / sqrt(variance + epsilon), and the new running statistics.
Results<5> own_forward(const Tensor& src, const OptionalTensor& weight, const OptionalTensor& bias,
                       const OptionalTensor& residual, const OptionalTensor& running_mean,
                       const OptionalTensor& running_var, const double momentum,
                       const double epsilon, const bool relu, const std::optional<double> clip) {
  const Source source = read_or_copy(src);
  const std::int64_t channels = source.geometry.channels;
  const Affine affine = read_affine(weight, bias, channels);
  const bool tracked = running_mean && running_var;
  Results<5> results;
  auto& [dst, mean, inverse_stddev, new_mean, new_variance] = results;
  new_mean = tracked ? make(api->clone, &*running_mean) : empty_vector(0);
  new_variance = tracked ? make(api->clone, &*running_var) : empty_vector(0);
  Running running;
  if (tracked) running = {*new_mean, *new_variance, momentum};
  const InLayoutOfSource addend = residual ? in_layout_of(source, *residual) : InLayoutOfSource{};
  Inputs inputs;
  inputs[Input::gamma] = affine.gamma;
  inputs[Input::beta] = affine.beta;
  inputs[Input::residual] = addend.data;
  Results<3> computed = compute_forward(source, inputs, {relu, clip}, epsilon, running);
  std::move(computed.begin(), computed.end(), results.begin());
  log_call({true, description(relu, residual.has_value()), nullptr}, src, weight, bias,
           running_mean, running_var);
  return results;
}

// Returns diff_src, diff_weight, diff_bias, and with `dst_tensor` the gradient of the residual.
Results<4> own_backward(const Tensor& diff_dst_tensor, const Tensor& src, const Tensor& mean,
                        const Tensor& inverse_stddev, const OptionalTensor& weight,
                        const OptionalTensor& bias, const OptionalTensor& dst_tensor,
                        const bool relu, const std::optional<double> clip) {
  const Source source = read_or_copy(src);
  const std::int64_t channels = source.geometry.channels;
  const Affine affine = read_affine(weight, bias, channels);
  const InLayoutOfSource diff_dst = in_layout_of(source, diff_dst_tensor);
  const InLayoutOfSource dst = dst_tensor ? in_layout_of(source, *dst_tensor) : InLayoutOfSource{};
  Inputs inputs;
  inputs[Input::diff_dst] = diff_dst.data;
  inputs[Input::mean] = f32_vector(mean, channels);
  inputs[Input::variance] = f32_vector(inverse_stddev, channels);
  inputs[Input::gamma] = affine.gamma;
  if (relu) inputs[Input::beta] = affine.beta;
  inputs[Input::dst] = dst.data;
  Results<4> results = compute_backward(source, inputs, {relu, clip}, Statistics::batch, 0, true);
  if (!dst_tensor) results[3] = empty_vector(0);
  log_call({false, description(relu, dst_tensor.has_value()), nullptr}, src, weight, bias);
  return results;
}

// PyTorch's operator by another name. _operators.py explains what differs.
void own_convolution_backward(Value* const values, std::uint64_t, std::uint64_t) {
  check(api->call("aten::convolution_backward", "", values, oldest_version));
}

}  // namespace

void register_own_ops() {
  load();
  add_kernels("onedsl", {{"batch_norm_training", &own_kernel<&own_forward>},
                         {"batch_norm_training_backward", &own_kernel<&own_backward>},
                         {"convolution_backward", &own_convolution_backward}});
}

}  // namespace onedsl::torch
