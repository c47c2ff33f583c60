#pragma once

// Per-channel sums of all chunks, and the coefficients of the normalization.

#include <cmath>

#include "coefficient_tables.inl"
#include "kernels.hpp"

namespace onedsl::native::ONEDSL_ISA {
namespace {

// ---- dst = (src - mean) * scale + beta ----

struct Normalization {
  float mean;
  float scale;
  float beta;
};

inline double inverse_stddev_of(const Parameters& parameters, const float variance) {
  const auto value = static_cast<double>(variance);
  if (parameters.variance_kind == VarianceKind::inverse_stddev) return value;
  return 1 / std::sqrt(value + parameters.epsilon);
}

inline double gamma_of(const Task& task, const Index c) {
  return task.tensors.gamma != nullptr ? static_cast<double>(task.tensors.gamma[c]) : 1;
}

// The statistics are the caller's f32 values, which the forward pass returns and the gradient
// reads. So the mask that the gradient recomputes from src is exactly that of the forward pass's
// dst, unless the caller keeps the statistics in bf16.
inline Normalization normalization_of(const Task& task, const Index c, const float mean,
                                      const float variance) {
  const double scale = gamma_of(task, c) * inverse_stddev_of(task.parameters, variance);
  const float beta = task.tensors.beta != nullptr ? task.tensors.beta[c] : 0;
  return {coefficient(mean), coefficient(scale), coefficient(beta)};
}

template <class T>
void set_normalization(const Task& task, const Index c, const Normalization& normalization) {
  const Tables& tables = task.workspace.tables;
  for_table_indices<T>(task, c, [&](const Index i) {
    tables.mean[i] = normalization.mean;
    tables.scale[i] = normalization.scale;
    tables.beta[i] = normalization.beta;
  });
}

template <class T>
void set_pivot(const Task& task, const Index c, const float pivot) {
  for_table_indices<T>(task, c, [&](const Index i) { task.workspace.tables.pivot[i] = pivot; });
}

// ---- Sums of all chunks ----

// Channels are added several at a time, because one channel's partial sums are far apart in memory.
constexpr Index channels_at_a_time = 16;

struct ChannelSums {
  double factors[channels_at_a_time];
  double products[channels_at_a_time];
};

inline ChannelSums add_partials(const Task& task, const Range& channels) {
  ChannelSums sums{};
  const Index count = length(channels);
  const double* partial = task.workspace.partials + channels.begin;
  for (Index k = 0; k < task.order.chunks; ++k, partial += 2 * task.order.channels) {
    for (Index i = 0; i < count; ++i) {
      sums.factors[i] += partial[i];
      sums.products[i] += partial[task.order.channels + i];
    }
  }
  return sums;
}

// A channel's totals, as Sums in core/ports.hpp defines them: the result of the reduce pass and the
// input of the apply pass.
struct Total {
  double first;
  double second;
};

// Calls apply(c, total_of(c, sum of factors, sum of products)). A run of one pass stores the totals
// or loads them instead.
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
  for (Index first = channels.begin; first < channels.end; first += channels_at_a_time) {
    const Range some{first, minimum(first + channels_at_a_time, channels.end)};
    const ChannelSums sums = add_partials(task, some);
    for (Index c = first; c < some.end; ++c) {
      const Total total = total_of(c, sums.factors[c - first], sums.products[c - first]);
      if (task.pass == Pass::both) {
        apply(c, total);
      } else {
        totals.first[c] = total.first;
        totals.second[c] = total.second;
      }
    }
  }
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
