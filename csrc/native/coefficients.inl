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
  const auto spread = static_cast<double>(variance);
  return formula.spread == Spread::inverse_deviation ? spread
                                                     : 1 / std::sqrt(spread + formula.epsilon);
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

// Calls finish_channel(c, its sum of weights, its sum of products).
template <class FinishChannel>
inline void for_sums(const Task& task, const Range& channels, const FinishChannel& finish_channel) {
  for (Index first = channels.begin; first < channels.end; first += channels_at_a_time) {
    const Range some{first, minimum(first + channels_at_a_time, channels.end)};
    const ChannelSums sums = add_partials(task, some);
    for (Index i = 0; i < length(some); ++i) {
      finish_channel(first + i, sums.weights[i], sums.products[i]);
    }
  }
}

// ---- The gradient ----

// What is subtracted from src while it is summed: the mean, or a number of few bits near it. In
// f32, src - mean is rounded alike for all src of one binade, an error that adds up as the number
// of elements does; with a pivot of few bits the difference is exact. finish_gradient() corrects
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

template <class T>
void finish_gradient_channel(const Task& task, const Index c, const double sum_diff_dst,
                             const double sum_product) {
  const Tensors& tensors = task.tensors;
  const double mean = static_cast<double>(tensors.mean[c]);
  const double inverse_deviation = inverse_deviation_of(task.formula, tensors.variance[c]);
  const double count = task.formula.per_statistic;

  // Of diff_dst * (src - mean).
  const double sum_centered =
      sum_product + (static_cast<double>(pivot_near_mean(task, c)) - mean) * sum_diff_dst;
  if (tensors.diff_gamma != nullptr) {
    tensors.diff_gamma[c] = static_cast<float>(sum_centered * inverse_deviation);
  }
  if (tensors.diff_beta != nullptr) tensors.diff_beta[c] = static_cast<float>(sum_diff_dst);

  const auto scale = static_cast<float>(gamma_of(task, c) * inverse_deviation);
  const bool batch = task.formula.statistics == Statistics::batch;
  const auto shift = batch ? static_cast<float>(sum_diff_dst / count) : 0;
  const auto slope =
      batch ? static_cast<float>(sum_centered * inverse_deviation / count * inverse_deviation) : 0;
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
  for_sums(task, channels, [&](const Index c, const double weights, const double products) {
    finish_gradient_channel<T>(task, c, weights, products);
  });
  return true;
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
