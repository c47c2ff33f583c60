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
  if (task.per_channel <= few_elements) return mean;
  return change_bits(mean, 0xfffff800U);
}

inline void prepare_gradient(const Task& task, const Range& channels) {
  for_table_indices(task, channels, [&](const Index i, const Index c) {
    task.workspace.tables.pivot[i] = pivot_near_mean(task, c);
  });
}

inline void prepare_masked_gradient(const Task& task, const Range& channels) {
  prepare_gradient(task, channels);
  const Tensors& tensors = task.tensors;
  for_some_channels(channels, [&](const Range& some) {
    set_normalization(task, some, tensors.mean + some.begin, tensors.variance + some.begin);
  });
}

inline ChannelSums gradient_totals(const Task& task, const Range& some, const ChannelSums& sums) {
  ChannelSums totals{};
  for (Index i = 0; i < length(some); ++i) {
    const Index c = some.begin + i;
    const double sum_diff_dst = sums.first[i];
    const auto mean = static_cast<double>(task.tensors.mean[c]);
    const double from_pivot_to_mean = static_cast<double>(pivot_near_mean(task, c)) - mean;
    // An infinite sum would turn an infinite product into NaN.
    const double correction =
        __builtin_isfinite(sum_diff_dst) ? from_pivot_to_mean * sum_diff_dst : 0;
    const double sum_centered = sums.second[i] + correction;
    totals.first[i] = sum_diff_dst;
    totals.second[i] = sum_centered * inverse_stddev_of(task.config, task.tensors.variance[c]);
  }
  return totals;
}

inline void apply_gradient(const Task& task, const Range& some, const ChannelSums& totals) {
  const Tensors& tensors = task.tensors;
  const double count = task.per_channel;
  const bool batch = task.config.statistics == Statistics::batch;
  float mean[channels_at_a_time];
  float scale[channels_at_a_time];
  float shift[channels_at_a_time];
  float slope[channels_at_a_time];
  for (Index i = 0; i < length(some); ++i) {
    const Index c = some.begin + i;
    const double inverse_stddev = inverse_stddev_of(task.config, tensors.variance[c]);
    mean[i] = coefficient(tensors.mean[c]);
    scale[i] = coefficient(gamma_of(task, c) * inverse_stddev);
    shift[i] = batch ? coefficient(totals.first[i] / count) : 0;
    slope[i] = batch ? coefficient(totals.second[i] / count * inverse_stddev) : 0;
  }
  const Tables& tables = task.workspace.tables;
  for_table_indices(task, some, [&](const Index i, const Index c) {
    tables.mean[i] = mean[c - some.begin];
    tables.scale[i] = scale[c - some.begin];
    tables.shift[i] = shift[c - some.begin];
    tables.slope[i] = slope[c - some.begin];
  });
  for (Index i = 0; i < length(some); ++i) {
    const Index c = some.begin + i;
    if (tensors.diff_gamma != nullptr) tensors.diff_gamma[c] = static_cast<float>(totals.second[i]);
    if (tensors.diff_beta != nullptr) tensors.diff_beta[c] = static_cast<float>(totals.first[i]);
  }
}

inline bool finish_gradient(const Task& task, const Range& channels) {
  finish_channels(
      task, channels,
      [&](const Range& some, const ChannelSums& sums) { return gradient_totals(task, some, sums); },
      [&](const Range& some, const ChannelSums& totals) { apply_gradient(task, some, totals); });
  return true;
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
