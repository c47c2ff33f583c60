#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "../plan/key.hpp"
#include "boxed.hpp"
#include "kernels.hpp"
#include "tensors.hpp"

// What the kernels of PyTorch's ops and of onedsl's have in common.
namespace onedsl::torch {

// A vector of f32, one element per channel, which may be absent.
class Vector {
 public:
  Vector(const OptionalTensor& tensor, const std::int64_t channels) {
    // Autograd passes undefined tensors for absent ones.
    if (!tensor || !get(api.is_defined, &*tensor)) return;
    tensor_ = &*tensor;
    data_ = f32_vector(*tensor, channels);
  }
  bool is_supported() const { return tensor_ == nullptr || data_ != nullptr; }
  const float* data() const { return data_; }
  float* mutable_data() const { return memory_of(*tensor_); }

 private:
  const Tensor* tensor_ = nullptr;
  const float* data_ = nullptr;
};

// gamma and beta: both or neither, as the ops require.
class Affine {
 public:
  Affine(const OptionalTensor& weight, const OptionalTensor& bias, const std::int64_t channels)
      : weight_(weight, channels), bias_(bias, channels) {
    const bool has_weight = weight_.data() != nullptr;
    if (has_weight != (bias_.data() != nullptr)) {
      absent_.assign(static_cast<std::size_t>(channels), has_weight ? 0.0F : 1.0F);
    }
  }

  bool is_supported() const { return weight_.is_supported() && bias_.is_supported(); }
  const float* gamma() const { return value_of(weight_); }
  const float* beta() const { return value_of(bias_); }

 private:
  const float* value_of(const Vector& given) const {
    return given.data() != nullptr || absent_.empty() ? given.data() : absent_.data();
  }

  Vector weight_;
  Vector bias_;
  std::vector<float> absent_;
};

// The elements of a tensor in the memory layout of another one of its shape and type. They are
// copied if the layout differs.
class InLayoutOf {
 public:
  InLayoutOf(const View& layout, const Tensor& tensor, const View& v) : data_(v.data) {
    if (same_strides(layout, v)) return;
    copy_ = empty_like(layout);
    check(api.copy(copy_.get(), &tensor, 0));
    data_ = memory_of<void>(*copy_);
  }
  const void* data() const { return data_; }

 private:
  OwnedTensor copy_;
  const void* data_;
};

inline OpConfig op_config(const Operation operation, const double epsilon,
                          const std::optional<double> clip = {}) {
  OpConfig config;
  config.operation = operation;
  config.attributes.epsilon = epsilon;
  if (clip) config.attributes.clip = *clip;
  return config;
}

// Returns nothing if the kernels do not support src or epsilon. `given` are the optional tensors.
std::optional<PlanKey> plan_key(const View& src, const OpConfig& config, InputSet given,
                                OutputSet outputs, Pass pass = Pass::both);

// Runs a plan, and writes it to the run log with `set_logged_run`'s function.
void execute(const PlanKey& key, const Ports& ports);
void set_logged_run(LoggedRun run);

// Returns dst, the batch's mean and its biased variance. The apply pass reads `sums`.
Results<3> compute_forward(const PlanKey& key, const View& src, const Affine& affine,
                           const void* residual, OwnedTensor dst, const Sums& sums = {});

// Registers CPU kernels of ops in a namespace, for the rest of the process.
void add_kernels(const char* ops, std::initializer_list<std::pair<const char*, Kernel*>> kernels);

}  // namespace onedsl::torch
