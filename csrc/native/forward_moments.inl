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
  const T* const src = static_cast<const T*>(task.tensors.src) + c * task.order.inner;
  const Samples& samples = task.samples;
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

template <class T>
void prepare_moments(const Task& task, const Range& channels) {
  for (Index c = channels.begin; c < channels.end; ++c) {
    set_pivot<T>(task, c, pivot_of_samples<T>(task, c));
  }
}

// Sets near_enough to false, and a better pivot, if the pivot is too far from the mean.
template <class T>
Total moments_total(const Task& task, const Index c, const double sum_deviation,
                    const double sum_square, bool& near_enough) {
  const double count = task.parameters.per_channel;
  const Index first = table_index<T>(task, task.order.columns ? c * task.order.inner : c);
  const auto pivot = static_cast<double>(task.workspace.tables.pivot[first]);
  const double off = sum_deviation / count;
  const double mean = pivot + off;
  const double difference = sum_square - off * sum_deviation;
  const double squares = difference < 0 ? 0 : difference;

  if (off * sum_deviation > farthest_pivot * squares) {
    near_enough = false;
    set_pivot<T>(task, c, pivot_near(mean, std::sqrt(squares / count)));
  }
  return {mean, squares};
}

template <class T>
void apply_moments(const Task& task, const Index c, const Total& total) {
  const double mean = total.first;
  const double variance = total.second / task.parameters.per_channel;
  const Tensors& tensors = task.tensors;
  tensors.batch_mean[c] = static_cast<float>(mean);
  const bool inverse = task.parameters.variance_kind == VarianceKind::inverse_stddev;
  tensors.batch_variance[c] =
      static_cast<float>(inverse ? 1 / std::sqrt(variance + task.parameters.epsilon) : variance);
  const double momentum = task.parameters.momentum;
  const auto running = [&](const float before, const double batch) {
    return static_cast<float>(momentum * static_cast<double>(before) + (1 - momentum) * batch);
  };
  tensors.running_mean[c] = running(tensors.mean[c], mean);
  tensors.running_variance[c] = running(tensors.variance[c], variance);
  set_normalization<T>(task, c,
                       normalization_of(task, c, tensors.batch_mean[c], tensors.batch_variance[c]));
}

template <class T>
bool finish_moments(const Task& task, const Range& channels) {
  bool near_enough = true;
  finish_channels(
      task, channels,
      [&](const Index c, const double deviations, const double squares) {
        return moments_total<T>(task, c, deviations, squares, near_enough);
      },
      [&](const Index c, const Total& total) { apply_moments<T>(task, c, total); });
  return near_enough;
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
