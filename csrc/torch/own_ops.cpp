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
  with_arguments(values, op,
                 [&](const auto&... arguments) { write_results(values, op(arguments.get()...)); });
}

void require_supported(const Reason reason) {
  if (reason != nullptr) {
    throw std::invalid_argument("onedsl's operators do not support " + std::string(reason));
  }
}

// src, or a dense copy of it if it is strided or unaligned. The copy has the strides of
// torch.empty_like.
class DenseSource {
 public:
  explicit DenseSource(const Tensor& tensor) {
    if (read_source(tensor, source_) == nullptr) return;
    Tensor* made = nullptr;
    check(api.clone(&tensor, &made));
    copy_.reset(made);
    require_supported(read_source(*copy_, source_));
  }
  const Source& get() const { return source_; }

 private:
  OwnedTensor copy_;
  Source source_ = {};
};

const float* required_vector(const Tensor& tensor, const std::int64_t channels) {
  float* data = nullptr;
  require_supported(read_f32_vector(tensor, channels, data));
  return data;
}

OwnedTensor absent(const Tensor& src) { return empty_vector(0, get(api.type, &src)); }

// Returns a new vector that holds the elements of another one.
OwnedTensor copy_of(const Vector& vector, const std::int64_t channels) {
  OwnedTensor copy = empty_vector(channels);
  std::memcpy(memory_of(*copy), vector.data(), static_cast<std::size_t>(channels) * sizeof(float));
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
  const Vector old_mean(running_mean, channels);
  const Vector old_variance(running_var, channels);
  for (const Reason reason : {affine.reason(), old_mean.reason(), old_variance.reason()}) {
    require_supported(reason);
  }
  Running running{nullptr, nullptr, momentum};
  Results<5> results;
  auto& [dst, mean, inverse_stddev, new_mean, new_variance] = results;
  if (old_mean.data() != nullptr && old_variance.data() != nullptr) {
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
    require_supported(addend->reason());
  }
  Outcome<3> outcome = compute_forward(source, affine, addend ? addend->data() : nullptr,
                                       {relu, clip}, epsilon, running);
  require_supported(outcome.reason);
  dst = std::move(outcome.results[0]);
  mean = std::move(outcome.results[1]);
  inverse_stddev = std::move(outcome.results[2]);
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
  require_supported(affine.reason());
  const InLayoutOf diff_dst(source, diff_dst_tensor);
  require_supported(diff_dst.reason());
  std::optional<InLayoutOf> dst;
  if (dst_tensor) {
    dst.emplace(source, *dst_tensor);
    require_supported(dst->reason());
  }
  BackwardInputs inputs{diff_dst.data(), required_vector(mean, channels),
                        required_vector(inverse_stddev, channels), affine.gamma()};
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
