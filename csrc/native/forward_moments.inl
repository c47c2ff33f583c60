#pragma once

// The forward pass's statistics, from the sums of src - pivot and of its square.
//
// They lose precision when the pivot is far from the mean, measured in standard deviations. The
// pivot is the mean of some samples; where it turns out to be too far (outliers among the samples),
// the channel is summed again about the mean that the first sums gave.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "coefficient_tables.inl"
#include "finish_channels.inl"
#include "kernels.hpp"

namespace onedsl::native::ONEDSL_ISA {
namespace {

// Largest squared distance of the pivot from the mean, in variances.
constexpr double farthest_pivot = 4;

// Return the value rounded to a multiple of a power of two, about an eighth of the spread. Then
// most src - pivot are exact, and the others are not all rounded in the same direction. If the
// spread is zero, return the value itself, so that the variance of equal values is zero.
inline float pivot_near(const double value, const double spread) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &spread, sizeof bits);
  bits &= 0x7ff0000000000000U;
  double step = 0;
  std::memcpy(&step, &bits, sizeof step);
  step /= 8;
  const double steps = value / step;
  const bool countable = __builtin_fabs(steps) < 0x1p52;
  const double near = countable ? static_cast<double>(static_cast<Index>(steps)) * step : value;
  const auto pivot = static_cast<float>(near);
  return __builtin_isfinite(pivot) ? pivot : 0;
}

template <class T>
float pivot_of_samples(const Task& task, const Index c) {
  const Samples& samples = task.samples;
  const T* const src = static_cast<const T*>(samples.src) + c * samples.channel_stride;
  double sum = 0;
  double least = 0;
  double most = 0;
  for (Index i = 0; i < samples.count; ++i) {
    const auto x = static_cast<double>(load_first(1, src + samples.at[i])[0]);
    sum += x;
    if (i == 0 || x < least) least = x;
    if (i == 0 || x > most) most = x;
  }
  return pivot_near(sum / static_cast<double>(samples.count), most - least);
}

inline void set_pivot(const Task& task, const Index channel, const float pivot) {
  for_table_indices(task, {channel, channel + 1}, [&](const Index i, const Index /*c*/) {
    task.workspace.tables.pivot[i] = pivot;
  });
}

template <class T>
void prepare_moments(const Task& task, const Range& channels) {
  for (Index c = channels.begin; c < channels.end; ++c) {
    set_pivot(task, c, pivot_of_samples<T>(task, c));
  }
}

// Sets near_enough to false, and better pivots, where a pivot is too far from the mean.
inline ChannelSums moments_totals(const Task& task, const Range& some, const ChannelSums& sums,
                                  bool& near_enough) {
  const double count = task.per_channel;
  ChannelSums totals{};
  for (Index i = 0; i < length(some); ++i) {
    const Index c = some.begin + i;
    const Index first =
        table_index(task.workspace.tables, task.order.columns ? c * task.order.inner : c);
    const auto pivot = static_cast<double>(task.workspace.tables.pivot[first]);
    const double sum_deviation = sums.first[i];
    const double off = sum_deviation / count;
    const double mean = pivot + off;
    const double difference = sums.second[i] - off * sum_deviation;
    const double squares = difference < 0 ? 0 : difference;

    if (off * sum_deviation > farthest_pivot * squares) {
      near_enough = false;
      set_pivot(task, c, pivot_near(mean, std::sqrt(squares / count)));
    }
    totals.first[i] = mean;
    totals.second[i] = squares;
  }
  return totals;
}

inline void apply_moments(const Task& task, const Range& some, const ChannelSums& totals) {
  const Tensors& tensors = task.tensors;
  const double momentum = task.config.attributes.momentum;
  const bool inverse = task.config.variance_kind == VarianceKind::inverse_stddev;
  const auto running = [&](const float* const before, const Index c, const double batch) {
    if (before == nullptr) return static_cast<float>(batch);
    return static_cast<float>(momentum * static_cast<double>(before[c]) + (1 - momentum) * batch);
  };
  float mean[channels_at_a_time];
  float variance[channels_at_a_time];
  float running_mean[channels_at_a_time];
  float running_variance[channels_at_a_time];
  for (Index i = 0; i < length(some); ++i) {
    const Index c = some.begin + i;
    const double value = totals.second[i] / task.per_channel;
    mean[i] = static_cast<float>(totals.first[i]);
    variance[i] =
        static_cast<float>(inverse ? 1 / std::sqrt(value + task.config.attributes.epsilon) : value);
    running_mean[i] = running(tensors.mean, c, totals.first[i]);
    running_variance[i] = running(tensors.variance, c, value);
  }
  for (Index i = 0; i < length(some); ++i) {
    const Index c = some.begin + i;
    tensors.batch_mean[c] = mean[i];
    tensors.batch_variance[c] = variance[i];
    tensors.running_mean[c] = running_mean[i];
    tensors.running_variance[c] = running_variance[i];
  }
  set_normalization(task, some, mean, variance);
}

inline bool finish_moments(const Task& task, const Range& channels) {
  bool near_enough = true;
  finish_channels(
      task, channels,
      [&](const Range& some, const ChannelSums& sums) {
        return moments_totals(task, some, sums, near_enough);
      },
      [&](const Range& some, const ChannelSums& totals) { apply_moments(task, some, totals); });
  return near_enough;
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
