#pragma once

#include <cstddef>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "../core/problem.hpp"
#include "boxed.hpp"
#include "tensors.hpp"

// The two passes of batch norm on PyTorch's tensors, shared by the kernels of PyTorch's ops and of
// onedsl's. The saved statistic is PyTorch's, 1 / sqrt(variance + epsilon).
//
// Functions throw Unsupported, before they compute anything.
namespace onedsl::torch {

// src: a tensor of shape (N, C, ...), dense in any order of its axes.
struct Source {
  View view;
  Geometry geometry;
  OwnedTensor copy;  // that the view is of, or null
};

// Reads src in training, where PyTorch requires two values per channel.
Source read_source(const Tensor& tensor);

// Epsilon must be positive and finite.
void check_epsilon(double epsilon);

// Autograd passes undefined tensors for absent ones.
bool is_given(const OptionalTensor& tensor);

// Returns a vector of f32, one element per channel, or null if it is absent.
const float* optional_vector(const OptionalTensor& tensor, std::int64_t channels);

// gamma and beta: both or neither, as the ops require.
struct Affine {
  const float* gamma;
  const float* beta;
  std::vector<float> absent;  // ones or zeros
};

// gamma and beta are null if absent.
Affine both_or_neither(const float* gamma, const float* beta, std::int64_t channels);

// The elements of a tensor of src's shape and type in src's memory layout. They are copied if the
// layout differs or if they are unaligned.
struct InLayoutOfSource {
  const void* data = nullptr;
  OwnedTensor copy;
};

InLayoutOfSource in_layout_of(const Source& source, const Tensor& tensor);

// An addition and a ReLU after batch norm, and the ReLU's upper bound.
struct ReLU {
  bool is_applied = false;
  std::optional<double> clip;
};

// Running statistics, updated in place by PyTorch's formula: both or neither.
struct Running {
  OptionalTensor mean;
  OptionalTensor variance;
  double momentum = 0;
};

using Inputs = PerPort<Input, const void*>;

// Returns dst, the batch's mean, and 1 / sqrt(variance + epsilon). `inputs` are gamma, beta and
// residual, null if absent.
Results<3> compute_forward(const Source& source, const Inputs& inputs, const ReLU& relu,
                           double epsilon, const Running& running);

// Returns diff_src, diff_gamma, diff_beta and diff_residual; undefined tensors if not computed.
// `inputs` are those beside src. With dst, the mask of the ReLU, diff_residual is computed. epsilon
// is positive if the variance is one, and 0 if it is 1 / sqrt(variance + epsilon).
Results<4> compute_backward(const Source& source, const Inputs& inputs, const ReLU& relu,
                            Statistics statistics, double epsilon, bool parameters);

// Registers CPU kernels of ops in a namespace, for the rest of the process.
void add_kernels(const char* ops, std::initializer_list<std::pair<const char*, Kernel*>> kernels);

}  // namespace onedsl::torch
