#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "../core/convert_16bit.hpp"
#include "call_log.hpp"
#include "compute.hpp"
#include "onedsl_ops.hpp"

// The kernels of the ops that run one pass on a part of the batch, for SyncBatchNorm. The processes
// exchange the totals of the reduce pass, a vector, and merge them for the apply pass. The reduce
// pass checks the arguments of both, so that a process that rejects some does so before the
// exchange.
namespace onedsl::torch {
namespace {

constexpr const char* of_all_processes = "onedsl with all processes";

// Returns the totals in a vector of the reduce pass.
Totals checked_totals(const Tensor& vector, const TensorCall& call) {
  const std::int64_t length = 1 + 2 * call.geometry.channels;
  const bool is_vector = view_of(vector) && get(api->type, &vector) == api->f64 &&
                         get(api->rank, &vector) == 1 && get(api->sizes, &vector)[0] == length &&
                         get(api->strides, &vector)[0] == 1;
  const auto doubles = [&](const std::int64_t bytes) {
    return bytes / static_cast<std::int64_t>(sizeof(double));
  };
  if (!is_vector ||
      doubles(get(api->storage_bytes, &vector)) - get(api->storage_offset, &vector) < length) {
    reject("totals of another call");
  }
  const Totals totals = totals_in(memory_of<double>(vector), call.geometry.channels);
  if (!(*totals.count >= static_cast<double>(call.geometry.per_channel()))) {
    reject("totals of fewer elements than the part has");
  }
  return totals;
}

// Converts parameters and running statistics in 16 bits, which models in bfloat16 have.
void convert_vectors(TensorCall& call, const ArgumentNames& names) {
  present(call.tensors).for_each([&](const Input port) {
    if (is_tensor(port)) return;
    const std::optional<View> v = view_of(*call.tensors[port]);
    if (!v || v->rank != 1) return;
    if (v->type != DataType::bf16 && v->type != DataType::f16) return;
    const std::optional<Memory> memory = v->memory();
    if (!memory || !v->holds(*memory)) reject(names, {Reason::memory, port});
    OwnedTensor in_f32 = empty_vector(v->shape[0]);
    const std::ptrdiff_t step = v->strides[0] * static_cast<std::ptrdiff_t>(size_of(v->type));
    for (std::ptrdiff_t i = 0; i < v->shape[0]; ++i) {
      convert(v->type, v->data + i * step, DataType::f32, memory_of(*in_f32) + i, 1);
    }
    call.tensors[port] = in_f32.get();
    call.copies.push_back(std::move(in_f32));
  });
}

TensorCall forward_part(const Pass pass, const Tensor& src, const OptionalTensor& weight,
                        const OptionalTensor& bias, const OptionalTensor& running_mean,
                        const OptionalTensor& running_var, const double epsilon) {
  OpConfig config;
  config.operation = Operation::forward_training;
  config.attributes.epsilon = epsilon;
  config.variance_kind = VarianceKind::inverse_stddev;
  config.pass = pass;
  TensorCall call = forward_call(config, src, weight, bias, running_mean, running_var);
  convert_vectors(call, forward_names);
  check_arguments(forward_names, call);
  return call;
}

TensorCall backward_part(const Pass pass, const Tensor& diff_dst, const Tensor& src,
                         const Tensor& mean, const Tensor& inverse_stddev,
                         const OptionalTensor& weight) {
  OpConfig config;
  config.operation = Operation::training_backward;
  config.variance_kind = VarianceKind::inverse_stddev;
  config.pass = pass;
  TensorCall call = backward_call(config, diff_dst, src, weight, &mean, &inverse_stddev);
  convert_vectors(call, backward_names);
  check_arguments(backward_names, call);
  return call;
}

Results<1> reduce(const Tensor& src, const OptionalTensor& weight, const OptionalTensor& bias,
                  const OptionalTensor& running_mean, const OptionalTensor& running_var,
                  const double epsilon) {
  TensorCall call =
      forward_part(Pass::reduce, src, weight, bias, running_mean, running_var, epsilon);
  return {compute_totals(call)};
}

// Returns dst, the batch's mean, 1 / sqrt(variance + epsilon), and the new running statistics.
Results<5> apply(const Tensor& totals, const Tensor& src, const OptionalTensor& weight,
                 const OptionalTensor& bias, const OptionalTensor& running_mean,
                 const OptionalTensor& running_var, const double momentum, const double epsilon) {
  TensorCall call =
      forward_part(Pass::apply, src, weight, bias, running_mean, running_var, epsilon);
  const Totals merged = checked_totals(totals, call);
  Results<5> results;
  auto& [dst, mean, inverse_stddev, new_mean, new_variance] = results;
  const auto& in = call.in;
  const bool updates = in[Input::mean].has_value();
  new_mean = copy_of(in[Input::mean], updates ? call.geometry.channels : 0);
  new_variance = copy_of(in[Input::variance], updates ? call.geometry.channels : 0);
  Running running;
  if (updates) running = {memory_of(*new_mean), memory_of(*new_variance), momentum};
  Results<3> computed = compute_forward(call, running, merged);
  std::move(computed.begin(), computed.end(), results.begin());
  log_call({true, of_all_processes, nullptr}, [&](LoggedCall& logged) {
    logged.shape = shape_of(src);
    logged.addresses = {address_of(weight), address_of(running_mean)};
    logged.results = {address_of(*mean)};
  });
  return results;
}

Results<1> reduce_gradient(const Tensor& diff_dst, const Tensor& src, const Tensor& mean,
                           const Tensor& inverse_stddev, const OptionalTensor& weight) {
  TensorCall call = backward_part(Pass::reduce, diff_dst, src, mean, inverse_stddev, weight);
  OwnedTensor totals = compute_totals(call);
  log_call({false, of_all_processes, nullptr}, [&](LoggedCall& logged) {
    logged.shape = shape_of(src);
    logged.addresses = {address_of(weight)};
    logged.source = address_of(mean);
  });
  return {std::move(totals)};
}

// Returns diff_src.
Results<1> apply_gradient(const Tensor& totals, const Tensor& diff_dst, const Tensor& src,
                          const Tensor& mean, const Tensor& inverse_stddev,
                          const OptionalTensor& weight) {
  TensorCall call = backward_part(Pass::apply, diff_dst, src, mean, inverse_stddev, weight);
  Results<4> computed = compute_backward(call, false, checked_totals(totals, call));
  return {std::move(computed.front())};
}

}  // namespace

void register_pass_ops() {
  add_kernels("onedsl", {{"batch_norm_training_reduce", &onedsl_kernel<&reduce>},
                         {"batch_norm_training_apply", &onedsl_kernel<&apply>},
                         {"batch_norm_training_backward_reduce", &onedsl_kernel<&reduce_gradient>},
                         {"batch_norm_training_backward_apply", &onedsl_kernel<&apply_gradient>}});
}

}  // namespace onedsl::torch
