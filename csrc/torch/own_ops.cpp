#include <stdexcept>
#include <utility>

#include "compute.hpp"
#include "kernels.hpp"

namespace onedsl::torch {
namespace {

template <class Outputs, class... Parameters, std::size_t... index>
void run(Value* const values, Outputs (*const op)(Parameters...), std::index_sequence<index...>) {
  const std::tuple<Argument<Parameters>...> arguments(values[index]...);
  write_results(values, op(std::get<index>(arguments).get()...));
}

template <class Outputs, class... Parameters>
void run(Value* const values, Outputs (*const op)(Parameters...)) {
  run(values, op, std::index_sequence_for<Parameters...>());
}

// The kernel that is registered for an op of onedsl.
template <auto op>
void own_kernel(Value* const values, std::uint64_t, std::uint64_t) {
  run(values, op);
}

// The ops of onedsl, which have no kernels of PyTorch to call instead.
// onedsl/torch/_compiled_ops.py defines them.

void require(const bool supported) {
  if (!supported) {
    throw std::runtime_error(
        "the tensors must be float32, bfloat16 or float16 on the CPU, with float32 statistics");
  }
}

// src in a layout that the kernels support: its own memory, or a contiguous copy.
class Source {
 public:
  explicit Source(const Tensor& tensor) {
    std::optional<View> v = onedsl::torch::view(tensor);
    require(v && v->rank >= 2);
    if (!is_contiguous_or_channels_last(*v)) {
      copy_ = empty_contiguous(*v);
      check(api.copy(copy_.get(), &tensor, 0));
      v = onedsl::torch::view(*copy_);
    }
    view_ = *v;
  }
  const View& view() const { return view_; }

  // A tensor of src's shape and type, copied if it has another layout.
  InLayoutOf in_layout(const Tensor& tensor) const {
    const std::optional<View> v = onedsl::torch::view(tensor);
    require(v && same_shape_and_type(*v, view_));
    return {view_, tensor, *v};
  }

 private:
  OwnedTensor copy_;
  View view_ = {};
};

// With `sums_tensor`, the result of the reduce pass, only the apply pass runs.
Results<3> own_forward(const OpConfig& config, const Tensor& src_tensor,
                       const OptionalTensor& weight, const OptionalTensor& bias,
                       const OptionalTensor& residual, const Tensor* const sums_tensor = nullptr) {
  const Source source(src_tensor);
  const View& src = source.view();
  const Affine affine(weight, bias, src.sizes[1]);
  std::optional<InLayoutOf> residual_elements;
  InputSet given;
  if (residual) {
    residual_elements.emplace(source.in_layout(*residual));
    given.add(Input::residual);
  }
  Sums sums;
  if (sums_tensor != nullptr) {
    const double* const vector = f64_vector(*sums_tensor, 1 + 2 * src.sizes[1]);
    require(vector != nullptr);
    sums = sums_in(const_cast<double*>(vector), src.sizes[1]);
  }
  const auto key = plan_key(src, config, given, signature_of(config.operation).outputs,
                            sums_tensor == nullptr ? Pass::both : Pass::apply);
  require(key && affine.is_supported());
  // The result may become the residual of a later layer, which fuse clones lazily. Where it hardly
  // ever does, memory of malloc is faster.
  const bool is_block_end = residual || config.operation == Operation::forward_training;
  return compute_forward(*key, src, affine, residual ? residual_elements->data() : nullptr,
                         is_block_end ? empty_clonable_like(src) : empty_like(src), sums);
}

Results<3> own_batch_norm(const Tensor& src, const OptionalTensor& weight,
                          const OptionalTensor& bias, const double epsilon) {
  return own_forward(op_config(Operation::forward_training, epsilon), src, weight, bias, {});
}

Results<3> own_batch_norm_relu(const Tensor& src, const OptionalTensor& weight,
                               const OptionalTensor& bias, const OptionalTensor& residual,
                               const double epsilon, const std::optional<double> clip) {
  return own_forward(op_config(Operation::relu_forward_training, epsilon, clip), src, weight, bias,
                     residual);
}

// The reduce pass: returns its result, the batch's mean and its biased variance.
Results<3> own_sums(const Tensor& src_tensor) {
  const Source source(src_tensor);
  const View& src = source.view();
  const std::int64_t channels = src.sizes[1];
  const double epsilon = 1;  // any: the apply pass uses it
  const auto key =
      plan_key(src, op_config(Operation::forward_training, epsilon), {}, {}, Pass::reduce);
  require(key.has_value());
  Results<3> results = {empty_f64_vector(1 + 2 * channels), empty_vector(channels),
                        empty_vector(channels)};
  Ports ports;
  ports.in[Input::src] = src.data;
  ports.sums = sums_in(memory_of<double>(*results[0]), channels);
  execute(*key, ports);
  float* const mean = memory_of(*results[1]);
  float* const variance = memory_of(*results[2]);
  for (std::int64_t c = 0; c < channels; ++c) {
    mean[c] = static_cast<float>(ports.sums.first[c]);
    variance[c] = static_cast<float>(ports.sums.second[c] / *ports.sums.count);
  }
  return results;
}

// The apply pass.
Results<1> own_apply(const Tensor& sums, const Tensor& src, const OptionalTensor& weight,
                     const OptionalTensor& bias, const double epsilon) {
  return {std::move(own_forward(op_config(Operation::forward_training, epsilon), src, weight, bias,
                                {}, &sums)[0])};
}

Results<1> own_apply_relu(const Tensor& sums, const Tensor& src, const OptionalTensor& weight,
                          const OptionalTensor& bias, const OptionalTensor& residual,
                          const double epsilon, const std::optional<double> clip) {
  return {std::move(own_forward(op_config(Operation::relu_forward_training, epsilon, clip), src,
                                weight, bias, residual, &sums)[0])};
}

// Returns diff_src, diff_gamma, diff_beta, and with `dst` the gradient of the residual.
Results<4> own_backward(const OpConfig& config, const Tensor& diff_dst_tensor,
                        const Tensor& src_tensor, const Tensor& mean_tensor,
                        const Tensor& variance_tensor, const OptionalTensor& weight,
                        const OptionalTensor& bias, const Tensor* const dst_tensor) {
  const Source source(src_tensor);
  const View& src = source.view();
  const std::int64_t channels = src.sizes[1];
  const InLayoutOf diff_dst = source.in_layout(diff_dst_tensor);
  std::optional<InLayoutOf> dst;
  if (dst_tensor != nullptr) dst.emplace(source.in_layout(*dst_tensor));
  const Affine affine(weight, bias, channels);
  const float* const mean = f32_vector(mean_tensor, channels);
  const float* const variance = f32_vector(variance_tensor, channels);
  const Signature& signature = signature_of(config.operation);
  const auto key = plan_key(src, config, dst ? InputSet(Input::dst) : InputSet(),
                            dst ? signature.outputs : signature.required);
  require(key && affine.is_supported() && mean != nullptr && variance != nullptr);

  Results<4> results = {empty_like(src), empty_vector(channels), empty_vector(channels)};
  Ports ports;
  ports.in[Input::src] = src.data;
  ports.in[Input::diff_dst] = diff_dst.data();
  ports.in[Input::mean] = mean;
  ports.in[Input::variance] = variance;
  ports.in[Input::gamma] = affine.gamma();
  ports.out[Output::diff_src] = memory_of<void>(*results[0]);
  ports.out[Output::diff_gamma] = memory_of(*results[1]);
  ports.out[Output::diff_beta] = memory_of(*results[2]);
  if (signature.inputs.has(Input::beta)) ports.in[Input::beta] = affine.beta();
  if (dst) {
    results[3] = empty_like(src);
    ports.in[Input::dst] = dst->data();
    ports.out[Output::diff_residual] = memory_of<void>(*results[3]);
  }
  execute(*key, ports);
  return results;
}

Results<3> first_three(Results<4> four) {
  return {std::move(four[0]), std::move(four[1]), std::move(four[2])};
}

Results<3> own_batch_norm_backward(const Tensor& diff_dst, const Tensor& src, const Tensor& mean,
                                   const Tensor& variance, const OptionalTensor& weight,
                                   const double epsilon) {
  return first_three(own_backward(op_config(Operation::training_backward, epsilon), diff_dst, src,
                                  mean, variance, weight, {}, nullptr));
}

Results<3> own_batch_norm_relu_backward(const Tensor& diff_dst, const Tensor& src,
                                        const Tensor& mean, const Tensor& variance,
                                        const OptionalTensor& weight, const OptionalTensor& bias,
                                        const double epsilon, const std::optional<double> clip) {
  return first_three(own_backward(op_config(Operation::relu_training_backward, epsilon, clip),
                                  diff_dst, src, mean, variance, weight, bias, nullptr));
}

Results<4> own_batch_norm_add_relu_backward(const Tensor& diff_dst, const Tensor& src,
                                            const Tensor& mean, const Tensor& variance,
                                            const OptionalTensor& weight,
                                            const OptionalTensor& bias, const Tensor& dst,
                                            const double epsilon,
                                            const std::optional<double> clip) {
  return own_backward(op_config(Operation::relu_training_backward, epsilon, clip), diff_dst, src,
                      mean, variance, weight, bias, &dst);
}

}  // namespace

void register_own_ops(const LoggedRun run) {
  load();
  set_logged_run(run);
  add_kernels(
      "onedsl",
      {{"batch_norm_training", &own_kernel<&own_batch_norm>},
       {"batch_norm_relu_training", &own_kernel<&own_batch_norm_relu>},
       {"batch_norm_sums", &own_kernel<&own_sums>},
       {"batch_norm_apply", &own_kernel<&own_apply>},
       {"batch_norm_relu_apply", &own_kernel<&own_apply_relu>},
       {"batch_norm_training_backward", &own_kernel<&own_batch_norm_backward>},
       {"batch_norm_relu_training_backward", &own_kernel<&own_batch_norm_relu_backward>},
       {"batch_norm_add_relu_training_backward", &own_kernel<&own_batch_norm_add_relu_backward>}});
}

}  // namespace onedsl::torch
