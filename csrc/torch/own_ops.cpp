#include <cstring>
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

// Returns read(). The message of Unsupported then names the argument that it reads.
template <class Read>
auto named(const char* const argument, const Read& read) {
  try {
    return read();
  } catch (const Unsupported& unsupported) {
    throw Unsupported(std::string(unsupported.what()) + " (" + argument + ")");
  }
}

OwnedTensor copy_of(const View& vector) {
  OwnedTensor copy = empty_vector(vector.size());
  std::memcpy(memory_of(*copy), vector.data, vector.bytes());
  return copy;
}

// The elements of a vector, or of a copy of it if they are unaligned.
struct Vector {
  const float* data = nullptr;
  OwnedTensor copy;
};

Vector read_vector(const char* const argument, const Tensor& tensor, const std::int64_t channels) {
  const View v = named(argument, [&] { return f32_vector_view(tensor, channels); });
  if (v.is_aligned()) return {reinterpret_cast<const float*>(v.data), nullptr};
  OwnedTensor copy = copy_of(v);
  const float* const data = memory_of(*copy);
  return {data, std::move(copy)};
}

Vector read_optional(const char* const argument, const OptionalTensor& tensor,
                     const std::int64_t channels) {
  return is_given(tensor) ? read_vector(argument, *tensor, channels) : Vector();
}

// The elements of an optional tensor of src's shape, null if it is absent.
InLayoutOfSource read_like(const Source& source, const char* const argument,
                           const OptionalTensor& tensor) {
  if (!tensor) return {};
  return named(argument, [&] { return in_layout_of(source, *tensor); });
}

// Returns a copy of a running statistic, or an empty tensor if it is absent.
OwnedTensor read_copy(const char* const argument, const OptionalTensor& tensor,
                      const std::int64_t channels) {
  if (!tensor) return empty_vector(0);
  return copy_of(named(argument, [&] { return f32_vector_view(*tensor, channels); }));
}

// Reads src, or a dense copy of it if it is strided or unaligned. The copy has the strides of
// torch.empty_like.
Source read_or_copy(const Tensor& tensor) {
  try {
    return read_source(tensor);
  } catch (const Unsupported&) {
    view_of(tensor);  // which a copy would not change
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
  const Source source = named("src", [&] { return read_or_copy(src); });
  const std::int64_t channels = source.geometry.channels;
  const Vector gamma = read_optional("weight", weight, channels);
  const Vector beta = read_optional("bias", bias, channels);
  const Affine affine = both_or_neither(gamma.data, beta.data, channels);
  Results<5> results;
  auto& [dst, mean, inverse_stddev, new_mean, new_variance] = results;
  new_mean = read_copy("running_mean", running_mean, channels);
  new_variance = read_copy("running_var", running_var, channels);
  Running running;
  if (running_mean) running.mean = *new_mean;
  if (running_var) running.variance = *new_variance;
  running.momentum = momentum;
  const InLayoutOfSource addend = read_like(source, "residual", residual);
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
Results<4> own_backward(const Tensor& diff_dst_tensor, const Tensor& src, const Tensor& mean_tensor,
                        const Tensor& inverse_stddev_tensor, const OptionalTensor& weight,
                        const OptionalTensor& bias, const OptionalTensor& dst_tensor,
                        const bool relu, const std::optional<double> clip) {
  const Source source = named("src", [&] { return read_or_copy(src); });
  const std::int64_t channels = source.geometry.channels;
  const Vector gamma = read_optional("weight", weight, channels);
  const Vector beta = read_optional("bias", bias, channels);
  const Vector mean = read_vector("mean", mean_tensor, channels);
  const Vector inverse_stddev = read_vector("inverse_stddev", inverse_stddev_tensor, channels);
  const Affine affine = both_or_neither(gamma.data, beta.data, channels);
  const InLayoutOfSource diff_dst = read_like(source, "diff_dst", diff_dst_tensor);
  const InLayoutOfSource dst = read_like(source, "dst", dst_tensor);
  Inputs inputs;
  inputs[Input::diff_dst] = diff_dst.data;
  inputs[Input::mean] = mean.data;
  inputs[Input::variance] = inverse_stddev.data;
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
