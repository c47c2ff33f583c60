#pragma once

// The forward pass's statistics, of the sums of src - pivot and of its square.
//
// They lose as many digits as the pivot is far from the mean, in deviations. So the pivot is the
// mean of some samples, and where that turns out to be far off (outliers among the samples), the
// channel is summed again about the mean that was found.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "coefficients.inl"
#include "kernels.hpp"
#include "tables.inl"

namespace onedsl::native::ONEDSL_ISA {
namespace {

// Squares, in variances.
constexpr double farthest_pivot = 4;

// The value in steps of about an eighth of the variance_kind, a power of two: so that src - pivot
// is mostly exact, and else not rounded alike for all src of one binade. That of equal values is
// the value, for their variance to be zero.
inline float pivot_near(const double value, const double variance_kind) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &variance_kind, sizeof bits);
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
void prepare_statistics(const Task& task, const Range& channels) {
  for (Index c = channels.begin; c < channels.end; ++c) {
    put_pivot<T>(task, c, pivot_of_samples<T>(task, c));
  }
}

// And near_enough is false where the pivot was not; another one is put there then.
template <class T>
Total statistics_total(const Task& task, const Index c, const double sum_distance,
                       const double sum_square, bool& near_enough) {
  const double count = task.formula.per_statistic;
  const auto pivot =
      static_cast<double>(task.workspace.tables.pivot[first_place_in_table<T>(task, c)]);
  const double off = sum_distance / count;
  const double mean = pivot + off;
  const double difference = sum_square - off * sum_distance;
  const double squares = difference < 0 ? 0 : difference;

  if (off * sum_distance > farthest_pivot * squares) {
    near_enough = false;
    put_pivot<T>(task, c, pivot_near(mean, std::sqrt(squares / count)));
  }
  return {mean, squares};
}

template <class T>
void apply_statistics(const Task& task, const Index c, const Total& total) {
  const double mean = total.first;
  const double variance = total.second / task.formula.per_statistic;
  const Tensors& tensors = task.tensors;
  tensors.batch_mean[c] = static_cast<float>(mean);
  tensors.batch_variance[c] = static_cast<float>(variance);
  const double momentum = task.formula.momentum;
  const auto running = [&](const float before, const double batch) {
    return static_cast<float>(momentum * static_cast<double>(before) + (1 - momentum) * batch);
  };
  tensors.running_mean[c] = running(tensors.mean[c], mean);
  tensors.running_variance[c] = running(tensors.variance[c], variance);
  put_normalization<T>(task, c,
                       normalization_of(task, c, tensors.batch_mean[c], tensors.batch_variance[c]));
}

template <class T>
bool finish_statistics(const Task& task, const Range& channels) {
  bool near_enough = true;
  finish_channels(
      task, channels,
      [&](const Index c, const double distances, const double squares) {
        return statistics_total<T>(task, c, distances, squares, near_enough);
      },
      [&](const Index c, const Total& total) { apply_statistics<T>(task, c, total); });
  return near_enough;
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
