#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "../core/check.hpp"
#include "boxed.hpp"
#include "tensors.hpp"

// The two passes of batch norm on PyTorch's tensors, shared by the kernels of PyTorch's ops and of
// onedsl's. The saved statistic is PyTorch's, 1 / sqrt(variance + epsilon).
namespace onedsl::torch {

// What PyTorch's batch norm supports in training.
CallRules rules_of(Operation operation) noexcept;

// A tensor without memory: whether it is a strided one on the CPU, type and shape.
using TensorInfo = std::tuple<bool, DataType, std::vector<std::ptrdiff_t>>;

// Returns why a call of PyTorch's batch norm with all inputs of an operation is rejected, whatever
// the memory layouts, or an empty string. Absent inputs are nullopt.
const char* why_unsupported(Operation operation,
                            const std::vector<std::optional<TensorInfo>>& inputs, double epsilon);

// A tensor, or null if it is absent. Autograd passes undefined tensors for absent ones.
const Tensor* pointer_to(const OptionalTensor& tensor);

// A call of PyTorch's tensors, and what its arrays borrow.
struct TensorCall : Call {
  using Call::Call;

  PerPort<Input, const Tensor*> tensors = {};  // null if absent
  std::vector<OwnedTensor> copies = {};        // of inputs
  std::vector<std::ptrdiff_t> strides = {};    // of resulting tensors
};

// Returns what was computed, followed by the inputs of which copies were made, for reports.
std::string with_copies(const char* computed, const TensorCall& call);

// Returns a call with the arguments that each batch norm of PyTorch has, which computes dst alone,
// or diff_src alone. Statistics that are null are absent.
TensorCall forward_call(const OpConfig& config, const Tensor& src, const OptionalTensor& weight,
                        const OptionalTensor& bias, const OptionalTensor& running_mean,
                        const OptionalTensor& running_var);
TensorCall backward_call(const OpConfig& config, const Tensor& diff_dst, const Tensor& src,
                         const OptionalTensor& weight, const Tensor* mean, const Tensor* variance);

using StridesOf = std::vector<std::ptrdiff_t>(const View& src, const View* diff_dst);

// Checks a call. Its outputs are the tensors that it will allocate, and the running statistics that
// it updates in place. Inputs of `copied` are copied by PyTorch if only their memory layout is
// unsupported, and src if results of src's order would be.
std::optional<Rejection> check_call(const CallRules& rules, InputSet copied, StridesOf* strides_of,
                                    TensorCall& call);

// Running statistics that a call updates by PyTorch's formula: momentum is the weight of the new
// statistics (in oneDNN it is the weight of the old ones), and the variance is unbiased. Null if
// there are none. A variance without a mean gets the unbiased variance of the batch.
struct Running {
  float* mean = nullptr;
  float* variance = nullptr;
  double momentum = 0;
};

// Returns dst, the batch's mean, and 1 / sqrt(variance + epsilon). A call of the apply pass gets
// the totals of the reduce pass, here and in compute_backward.
Results<3> compute_forward(TensorCall& call, const Running& running, const Totals& totals = {});

// Returns diff_src, diff_gamma, diff_beta and diff_residual; undefined tensors if not computed.
// diff_residual is computed if the call's outputs have it.
Results<4> compute_backward(TensorCall& call, bool parameters, const Totals& totals = {});

// Runs the reduce pass of a call. Returns its totals in one vector.
OwnedTensor compute_totals(TensorCall& call);

// Registers CPU kernels of ops in a namespace, for the rest of the process.
void add_kernels(const char* ops, std::initializer_list<std::pair<const char*, Kernel*>> kernels);

}  // namespace onedsl::torch
