#pragma once

// Per-channel sums of all chunks, and the coefficients of the normalization.

#include <cmath>

#include "coefficient_tables.inl"
#include "kernels.hpp"

namespace onedsl::native::ONEDSL_ISA {
namespace {

// ---- dst = (src - mean) * scale + beta ----

inline double inverse_stddev_of(const OpConfig& config, const float variance) {
  const auto value = static_cast<double>(variance);
  if (config.variance_kind == VarianceKind::inverse_stddev) return value;
  return 1 / std::sqrt(value + config.attributes.epsilon);
}

inline double gamma_of(const Task& task, const Index c) {
  return task.tensors.gamma != nullptr ? static_cast<double>(task.tensors.gamma[c]) : 1;
}

// Channels are processed several at a time: one channel's partial sums are far apart in memory, and
// the square roots and quotients of several channels are computed as vectors.
constexpr Index channels_at_a_time = 16;

template <class Process>
inline void for_some_channels(const Range& channels, const Process& process) {
  for (Index first = channels.begin; first < channels.end; first += channels_at_a_time) {
    process(Range{first, minimum(first + channels_at_a_time, channels.end)});
  }
}

// The arrays begin with the value of channel some.begin. They are the caller's f32 values, which
// the forward pass returns and the gradient reads. So the mask that the gradient recomputes from
// src is exactly that of the forward pass's dst, unless the caller keeps the statistics in bf16.
inline void set_normalization(const Task& task, const Range& some, const float* const means,
                              const float* const variances) {
  float mean[channels_at_a_time];
  float scale[channels_at_a_time];
  float beta[channels_at_a_time];
  for (Index i = 0; i < length(some); ++i) {
    const Index c = some.begin + i;
    const double inverse_stddev = inverse_stddev_of(task.config, variances[i]);
    mean[i] = coefficient(means[i]);
    scale[i] = coefficient(gamma_of(task, c) * inverse_stddev);
    beta[i] = task.tensors.beta != nullptr ? coefficient(task.tensors.beta[c]) : 0;
  }
  const Tables& tables = task.workspace.tables;
  for_table_indices(task, some, [&](const Index i, const Index c) {
    tables.mean[i] = mean[c - some.begin];
    tables.scale[i] = scale[c - some.begin];
    tables.beta[i] = beta[c - some.begin];
  });
}

// ---- Sums of all chunks ----

// Two values of some channels: their sums, or their totals, as Sums in core/ports.hpp defines them:
// the result of the reduce pass and the input of the apply pass.
struct ChannelSums {
  double first[channels_at_a_time];
  double second[channels_at_a_time];
};

inline ChannelSums add_partials(const Task& task, const Range& some) {
  ChannelSums sums{};
  const Index count = length(some);
  const double* partial = task.workspace.partials + some.begin;
  for (Index k = 0; k < task.order.chunks; ++k, partial += 2 * task.order.channels) {
    for (Index i = 0; i < count; ++i) {
      sums.first[i] += partial[i];
      sums.second[i] += partial[task.order.channels + i];
    }
  }
  return sums;
}

// Calls apply(some channels, totals_of(some channels, their sums)). A run of one pass stores the
// totals or loads them instead.
template <class TotalsOf, class Apply>
inline void finish_channels(const Task& task, const Range& channels, const TotalsOf& totals_of,
                            const Apply& apply) {
  for_some_channels(channels, [&](const Range& some) {
    ChannelSums totals{};
    if (task.config.pass == Pass::apply) {
      for (Index i = 0; i < length(some); ++i) {
        totals.first[i] = task.totals.first[some.begin + i];
        totals.second[i] = task.totals.second[some.begin + i];
      }
    } else {
      totals = totals_of(some, add_partials(task, some));
    }
    if (task.config.pass != Pass::reduce) return apply(some, totals);
    for (Index i = 0; i < length(some); ++i) {
      task.totals.first[some.begin + i] = totals.first[i];
      task.totals.second[some.begin + i] = totals.second[i];
    }
  });
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
