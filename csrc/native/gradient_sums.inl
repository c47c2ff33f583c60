#pragma once

// The gradient's sums: the pivot before, diff_gamma, diff_beta and the coefficients after.

#include "coefficient_tables.inl"
#include "finish_channels.inl"
#include "kernels.hpp"

namespace onedsl::native::ONEDSL_ISA {
namespace {

// The pivot is the mean with its last bits cleared. In f32, src - mean is rounded alike for all src
// of one binade, an error that grows with the number of elements; with few bits in the pivot the
// difference is exact. gradient_total() corrects the sum for the difference of pivot and mean.
// Few elements are summed about the mean itself, so that zeros come out exact.
constexpr double few_elements = 8192;

inline float pivot_near_mean(const Task& task, const Index c) {
  const float mean = task.tensors.mean[c];
  if (task.parameters.per_channel <= few_elements) return mean;
  return change_bits(mean, 0xfffff800U);
}

template <class T>
void prepare_gradient(const Task& task, const Range& channels) {
  for (Index c = channels.begin; c < channels.end; ++c) {
    set_pivot<T>(task, c, pivot_near_mean(task, c));
  }
}

template <class T>
void prepare_masked_gradient(const Task& task, const Range& channels) {
  prepare_gradient<T>(task, channels);
  const Tensors& tensors = task.tensors;
  for (Index c = channels.begin; c < channels.end; ++c) {
    set_normalization<T>(task, c, normalization_of(task, c, tensors.mean[c], tensors.variance[c]));
  }
}

inline Total gradient_total(const Task& task, const Index c, const double sum_diff_dst,
                            const double sum_product) {
  const auto mean = static_cast<double>(task.tensors.mean[c]);
  const double from_pivot_to_mean = static_cast<double>(pivot_near_mean(task, c)) - mean;
  // An infinite sum would turn an infinite product into NaN.
  const double correction =
      __builtin_isfinite(sum_diff_dst) ? from_pivot_to_mean * sum_diff_dst : 0;
  const double sum_centered = sum_product + correction;
  return {sum_diff_dst,
          sum_centered * inverse_stddev_of(task.parameters, task.tensors.variance[c])};
}

template <class T>
void apply_gradient(const Task& task, const Index c, const Total& total) {
  const Tensors& tensors = task.tensors;
  const double inverse_stddev = inverse_stddev_of(task.parameters, tensors.variance[c]);
  const double count = task.parameters.per_channel;
  if (tensors.diff_gamma != nullptr) tensors.diff_gamma[c] = static_cast<float>(total.second);
  if (tensors.diff_beta != nullptr) tensors.diff_beta[c] = static_cast<float>(total.first);

  const float mean = coefficient(tensors.mean[c]);
  const float scale = coefficient(gamma_of(task, c) * inverse_stddev);
  const bool batch = task.parameters.statistics == Statistics::batch;
  const float shift = batch ? coefficient(total.first / count) : 0;
  const float slope = batch ? coefficient(total.second / count * inverse_stddev) : 0;
  const Tables& tables = task.workspace.tables;
  for_table_indices<T>(task, c, [&](const Index i) {
    tables.mean[i] = mean;
    tables.scale[i] = scale;
    tables.shift[i] = shift;
    tables.slope[i] = slope;
  });
}

template <class T>
bool finish_gradient(const Task& task, const Range& channels) {
  finish_channels(
      task, channels,
      [&](const Index c, const double factors, const double products) {
        return gradient_total(task, c, factors, products);
      },
      [&](const Index c, const Total& total) { apply_gradient<T>(task, c, total); });
  return true;
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
