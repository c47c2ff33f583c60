#pragma once

// From the sums to diff_gamma, diff_beta and what every channel's diff_src is computed with.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels.hpp"
#include "tables.inl"

namespace onedsl::native::ONEDSL_ISA {
namespace {

// What is subtracted from src while it is summed: the mean, or a number of few bits near it. In
// f32, src - mean is rounded alike for all src of one binade, an error that adds up as the number
// of elements does; with a pivot of few bits the difference is exact. finish() corrects the sum for
// the difference between pivot and mean. Few elements are summed about the mean itself, for zeros
// to be exact.
constexpr double few_elements = 8192;

inline float pivot_of(const Task& task, const Index c) {
  const float mean = task.tensors.mean[c];
  if (task.formula.per_statistic <= few_elements) return mean;
  std::uint32_t bits = 0;
  std::memcpy(&bits, &mean, sizeof bits);
  bits &= 0xfffff800U;
  float pivot = 0;
  std::memcpy(&pivot, &bits, sizeof pivot);
  return pivot;
}

template <class T>
void fill_pivots(const Task& task) {
  for (Index c = 0; c < task.order.channels; ++c) {
    const float pivot = pivot_of(task, c);
    for_places_in_table<T>(task, c,
                           [&](const Index place) { task.workspace.tables.pivot[place] = pivot; });
  }
}

inline double inverse_deviation_of(const Task& task, const Index c) {
  const auto spread = static_cast<double>(task.tensors.variance[c]);
  return task.formula.spread == Spread::inverse_deviation
             ? spread
             : 1 / std::sqrt(spread + task.formula.epsilon);
}

// Of some neighbouring channels: the partial sums of one alone lie far apart.
constexpr Index channels_at_a_time = 16;

struct ChannelSums {
  double diff_dst[channels_at_a_time];
  double product[channels_at_a_time];
};

inline ChannelSums add_partials(const Task& task, const Range& channels) {
  ChannelSums sums{};
  const Index count = length(channels);
  const double* partial = task.workspace.partials + channels.begin;
  for (Index k = 0; k < task.order.partials; ++k, partial += 2 * task.order.channels) {
    for (Index i = 0; i < count; ++i) {
      sums.diff_dst[i] += partial[i];
      sums.product[i] += partial[task.order.channels + i];
    }
  }
  return sums;
}

template <class T>
void finish_channel(const Task& task, const Index c, const double sum_diff_dst,
                    const double sum_product) {
  const Tensors& tensors = task.tensors;
  const double mean = static_cast<double>(tensors.mean[c]);
  const double inverse_deviation = inverse_deviation_of(task, c);
  const double count = task.formula.per_statistic;

  // Of diff_dst * (src - mean).
  const double sum_centered =
      sum_product + (static_cast<double>(pivot_of(task, c)) - mean) * sum_diff_dst;
  if (tensors.diff_gamma != nullptr) {
    tensors.diff_gamma[c] = static_cast<float>(sum_centered * inverse_deviation);
  }
  if (tensors.diff_beta != nullptr) tensors.diff_beta[c] = static_cast<float>(sum_diff_dst);

  const double gamma = tensors.gamma != nullptr ? static_cast<double>(tensors.gamma[c]) : 1;
  const auto scale = static_cast<float>(gamma * inverse_deviation);
  const auto shift = static_cast<float>(sum_diff_dst / count);
  const auto slope =
      static_cast<float>(sum_centered * inverse_deviation / count * inverse_deviation);
  const Tables& tables = task.workspace.tables;
  for_places_in_table<T>(task, c, [&](const Index place) {
    tables.mean[place] = tensors.mean[c];
    tables.scale[place] = scale;
    tables.shift[place] = shift;
    tables.slope[place] = slope;
  });
}

template <class T>
void finish(const Task& task, const Range& channels) {
  for (Index first = channels.begin; first < channels.end; first += channels_at_a_time) {
    const Range some{first, minimum(first + channels_at_a_time, channels.end)};
    const ChannelSums sums = add_partials(task, some);
    for (Index i = 0; i < length(some); ++i) {
      finish_channel<T>(task, first + i, sums.diff_dst[i], sums.product[i]);
    }
  }
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
