#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

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
      write_results(values, op(arguments.get()...));
    } catch (const Unsupported& unsupported) {
      throw std::invalid_argument("onedsl's operators do not support " +
                                  std::string(unsupported.what()));
    }
  });
}

// src, or a dense copy of it if it is strided or unaligned. The copy has the strides of
// torch.empty_like.
class DenseSource {
 public:
  explicit DenseSource(const Tensor& tensor) {
    try {
      source_ = read_source(tensor);
    } catch (const Unsupported&) {
      Tensor* made = nullptr;
      check(api.clone(&tensor, &made));
      copy_.reset(made);
      source_ = read_source(*copy_);
    }
  }
  const Source& get() const { return source_; }

 private:
  OwnedTensor copy_;
  Source source_;
};

OwnedTensor absent(const Tensor& src) { return empty_vector(0, get(api.type, &src)); }

// Returns a new vector that holds the elements of another one.
OwnedTensor copy_of(const float* const vector, const std::int64_t channels) {
  OwnedTensor copy = empty_vector(channels);
  std::memcpy(memory_of(*copy), vector, static_cast<std::size_t>(channels) * sizeof(float));
  return copy;
}

// Returns dst, the batch's mean, 1 / sqrt(variance + epsilon), and the new running statistics.
Results<5> own_forward(const Tensor& src, const OptionalTensor& weight, const OptionalTensor& bias,
                       const OptionalTensor& residual, const OptionalTensor& running_mean,
                       const OptionalTensor& running_var, const double momentum,
                       const double epsilon, const bool relu, const std::optional<double> clip) {
  const DenseSource dense(src);
  const Source& source = dense.get();
  const std::int64_t channels = source.channels();
  const Affine affine(weight, bias, channels);
  const float* const old_mean = optional_vector(running_mean, channels);
  const float* const old_variance = optional_vector(running_var, channels);
  Running running{nullptr, nullptr, momentum};
  Results<5> results;
  OwnedTensor& new_mean = results[3];
  OwnedTensor& new_variance = results[4];
  if (old_mean != nullptr && old_variance != nullptr) {
    new_mean = copy_of(old_mean, channels);
    new_variance = copy_of(old_variance, channels);
    running.mean = memory_of(*new_mean);
    running.variance = memory_of(*new_variance);
  } else {
    new_mean = absent(src);
    new_variance = absent(src);
  }
  std::optional<InLayoutOf> addend;
  if (residual) {
    addend.emplace(source, *residual);
  }
  Results<3> computed = compute_forward(source, affine, addend ? addend->data() : nullptr,
                                        {relu, clip}, epsilon, running);
  std::move(computed.begin(), computed.end(), results.begin());
  return results;
}

// Returns diff_src, diff_weight, diff_bias, and with `dst_tensor` the gradient of the residual.
Results<4> own_backward(const Tensor& diff_dst_tensor, const Tensor& src, const Tensor& mean,
                        const Tensor& inverse_stddev, const OptionalTensor& weight,
                        const OptionalTensor& bias, const OptionalTensor& dst_tensor,
                        const bool relu, const std::optional<double> clip) {
  const DenseSource dense(src);
  const Source& source = dense.get();
  const std::int64_t channels = source.channels();
  const Affine affine(weight, bias, channels);
  const InLayoutOf diff_dst(source, diff_dst_tensor);
  std::optional<InLayoutOf> dst;
  if (dst_tensor) {
    dst.emplace(source, *dst_tensor);
  }
  BackwardInputs inputs{diff_dst.data(), f32_vector(mean, channels),
                        f32_vector(inverse_stddev, channels), affine.gamma()};
  if (relu) inputs.beta = affine.beta();
  if (dst) inputs.dst = dst->data();
  Results<4> results = compute_backward(source, inputs, {relu, clip}, Statistics::batch, 0, true);
  if (!dst) results[3] = absent(src);
  return results;
}

// PyTorch's operator by another name. _operators.py explains what differs.
void own_convolution_backward(Value* const values, std::uint64_t, std::uint64_t) {
  check(api.call("aten::convolution_backward", "", values, oldest_version));
}

}  // namespace

void register_own_ops(const LoggedRun run) {
  load();
  set_logged_run(run);
  add_kernels("onedsl", {{"batch_norm_training", &own_kernel<&own_forward>},
                         {"batch_norm_training_backward", &own_kernel<&own_backward>},
                         {"convolution_backward", &own_convolution_backward}});
}

}  // namespace onedsl::torch
