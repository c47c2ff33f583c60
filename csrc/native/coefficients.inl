#pragma once

// What each channel's elements are computed with, and the gradient's way from the sums to it.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels.hpp"
#include "tables.inl"

namespace onedsl::native::ONEDSL_ISA {
namespace {

// ---- dst = (src - mean) * scale + beta ----

struct Normalization {
  float mean;
  float scale;
  float beta;
};

inline double inverse_deviation_of(const Formula& formula, const float variance) {
  const auto variance_kind = static_cast<double>(variance);
  return formula.variance_kind == VarianceKind::inverse_stddev
             ? variance_kind
             : 1 / std::sqrt(variance_kind + formula.epsilon);
}

inline double gamma_of(const Task& task, const Index c) {
  return task.tensors.gamma != nullptr ? static_cast<double>(task.tensors.gamma[c]) : 1;
}

// By the statistics as the caller has them: those that the forward pass returns, and the gradient
// is given. So the gradient makes the same mask of src as the forward pass's dst has.
inline Normalization normalization_of(const Task& task, const Index c, const float mean,
                                      const float variance) {
  const double scale = gamma_of(task, c) * inverse_deviation_of(task.formula, variance);
  const float beta = task.tensors.beta != nullptr ? task.tensors.beta[c] : 0;
  return {mean, static_cast<float>(scale), beta};
}

template <class T>
void put_normalization(const Task& task, const Index c, const Normalization& normalization) {
  const Tables& tables = task.workspace.tables;
  for_places_in_table<T>(task, c, [&](const Index place) {
    tables.mean[place] = normalization.mean;
    tables.scale[place] = normalization.scale;
    tables.beta[place] = normalization.beta;
  });
}

template <class T>
void put_pivot(const Task& task, const Index c, const float pivot) {
  for_places_in_table<T>(task, c,
                         [&](const Index place) { task.workspace.tables.pivot[place] = pivot; });
}

// ---- Sums of all chunks ----

// Of some neighbouring channels: the partial sums of one alone lie far apart.
constexpr Index channels_at_a_time = 16;

struct ChannelSums {
  double weights[channels_at_a_time];
  double products[channels_at_a_time];
};

inline ChannelSums add_partials(const Task& task, const Range& channels) {
  ChannelSums sums{};
  const Index count = length(channels);
  const double* partial = task.workspace.partials + channels.begin;
  for (Index k = 0; k < task.order.partials; ++k, partial += 2 * task.order.channels) {
    for (Index i = 0; i < count; ++i) {
      sums.weights[i] += partial[i];
      sums.products[i] += partial[task.order.channels + i];
    }
  }
  return sums;
}

// Calls use(c, its sum of weights, its sum of products).
template <class Use>
inline void for_sums(const Task& task, const Range& channels, const Use& use) {
  for (Index first = channels.begin; first < channels.end; first += channels_at_a_time) {
    const Range some{first, minimum(first + channels_at_a_time, channels.end)};
    const ChannelSums sums = add_partials(task, some);
    for (Index i = 0; i < length(some); ++i) {
      use(first + i, sums.weights[i], sums.products[i]);
    }
  }
}

// What one pass of a run leaves to the other of a channel, and a whole run goes through as well: of
// the gradient, the sums of diff_dst and of diff_dst * xhat; of the forward pass, the mean and the
// sum of the squared distances from it.
struct Total {
  double first;
  double second;
};

// total_of(c, its sum of weights, its sum of products), and apply(c, that).
template <class TotalOf, class Apply>
inline void finish_channels(const Task& task, const Range& channels, const TotalOf& total_of,
                            const Apply& apply) {
  const Totals& totals = task.totals;
  if (task.pass == Pass::apply) {
    for (Index c = channels.begin; c < channels.end; ++c) {
      apply(c, Total{totals.first[c], totals.second[c]});
    }
    return;
  }
  for_sums(task, channels, [&](const Index c, const double weights, const double products) {
    const Total total = total_of(c, weights, products);
    if (task.pass == Pass::both) return apply(c, total);
    totals.first[c] = total.first;
    totals.second[c] = total.second;
  });
}

// ---- The gradient ----

// What is subtracted from src while it is summed: the mean, or a number of few bits near it. In
// f32, src - mean is rounded alike for all src of one binade, an error that adds up as the number
// of elements does; with a pivot of few bits the difference is exact. gradient_total() corrects
// the sum for the difference between pivot and mean. Few elements are summed about the mean itself,
// for zeros to be exact.
constexpr double few_elements = 8192;

inline float pivot_near_mean(const Task& task, const Index c) {
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
void prepare_gradient(const Task& task, const Range& channels) {
  for (Index c = channels.begin; c < channels.end; ++c) {
    put_pivot<T>(task, c, pivot_near_mean(task, c));
  }
}

// With what the mask is made of.
template <class T>
void prepare_masked_gradient(const Task& task, const Range& channels) {
  prepare_gradient<T>(task, channels);
  const Tensors& tensors = task.tensors;
  for (Index c = channels.begin; c < channels.end; ++c) {
    put_normalization<T>(task, c, normalization_of(task, c, tensors.mean[c], tensors.variance[c]));
  }
}

inline Total gradient_total(const Task& task, const Index c, const double sum_diff_dst,
                            const double sum_product) {
  const auto mean = static_cast<double>(task.tensors.mean[c]);
  const double from_pivot_to_mean = static_cast<double>(pivot_near_mean(task, c)) - mean;
  const double sum_centered = sum_product + from_pivot_to_mean * sum_diff_dst;
  return {sum_diff_dst,
          sum_centered * inverse_deviation_of(task.formula, task.tensors.variance[c])};
}

template <class T>
void apply_gradient(const Task& task, const Index c, const Total& total) {
  const Tensors& tensors = task.tensors;
  const double inverse_stddev = inverse_deviation_of(task.formula, tensors.variance[c]);
  const double count = task.formula.per_statistic;
  if (tensors.diff_gamma != nullptr) tensors.diff_gamma[c] = static_cast<float>(total.second);
  if (tensors.diff_beta != nullptr) tensors.diff_beta[c] = static_cast<float>(total.first);

  const auto scale = static_cast<float>(gamma_of(task, c) * inverse_stddev);
  const bool batch = task.formula.statistics == Statistics::batch;
  const auto shift = batch ? static_cast<float>(total.first / count) : 0;
  const auto slope = batch ? static_cast<float>(total.second / count * inverse_stddev) : 0;
  const Tables& tables = task.workspace.tables;
  for_places_in_table<T>(task, c, [&](const Index place) {
    tables.mean[place] = tensors.mean[c];
    tables.scale[place] = scale;
    tables.shift[place] = shift;
    tables.slope[place] = slope;
  });
}

template <class T>
bool finish_gradient(const Task& task, const Range& channels) {
  finish_channels(
      task, channels,
      [&](const Index c, const double weights, const double products) {
        return gradient_total(task, c, weights, products);
      },
      [&](const Index c, const Total& total) { apply_gradient<T>(task, c, total); });
  return true;
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
