#pragma once

// Per-channel sums of all chunks, and the coefficients of the normalization.

#include "coefficient_tables.inl"
#include "kernels.hpp"
#include "ports.inl"
#include "vector.hpp"
#include "vector_pair.hpp"

namespace onedsl::native::ONEDSL_ISA {
namespace {

// ---- dst = (src - mean) * scale + beta ----

inline DoubleVec inverse_stddev(const DoubleVec& variance, const double epsilon) {
  return for_halves([&](const Doubles v) { return 1 / square_root(v + epsilon); }, variance);
}

inline DoubleVec inverse_stddev_of(const OpConfig& config, const Vec variance) {
  if (config.variance_kind == VarianceKind::inverse_stddev) return widen(variance);
  return inverse_stddev(widen(variance), config.attributes.epsilon);
}

template <class Access>
Vec gamma_of(const KernelArgs& args, const Index c, const Access& access) {
  return input(args, Input::gamma) != nullptr ? access.read(input(args, Input::gamma) + c)
                                              : broadcast(1);
}

// The mean and the variance are the caller's in f32, which the forward pass returns and the
// gradient reads. So the mask that the gradient recomputes from src is exactly that of the forward
// pass's dst, unless the caller keeps the statistics in bf16. Only a forward pass whose result no
// gradient recomputes may pass the rest of the mean, which f32 cannot represent.
template <class Access>
void set_normalization(const KernelArgs& args, const ChannelEntries& entries, const Index c,
                       const Access& access, const Vec mean, const Vec variance,
                       const Vec* const rest_of_mean = nullptr) {
  const Tables& tables = args.tables;
  const DoubleVec inverse_stddev = inverse_stddev_of(args.config, variance);
  const Vec scale = coefficient(widen(gamma_of(args, c, access)) * inverse_stddev);
  Vec beta = input(args, Input::beta) != nullptr ? access.read(input(args, Input::beta) + c)
                                                 : broadcast(0);
  if (rest_of_mean != nullptr) {
    const Vec corrected = subtract_product(beta, *rest_of_mean, scale);
    // Zero times infinity is NaN.
    const Vec zero = broadcast(0) * corrected;
    beta = zero == zero ? corrected : beta;
  }
  entries.set(c, access, TableValues{tables.mean, coefficient(mean)},
              TableValues{tables.scale, scale}, TableValues{tables.beta, coefficient(beta)});
}

// ---- Sums of all chunks ----

// Channels are processed several at a time: one channel's partial sums are far apart in memory, and
// the formulas of one vector are a long chain, which the CPU overlaps with those of others.
constexpr Index channels_at_a_time = 128;

// The two sums of some channels (see sums.inl) over all chunks.
struct ChannelSums {
  double first[channels_at_a_time];
  double second[channels_at_a_time];
};

// The Totals of some channels.
struct ChannelTotals {
  double first[channels_at_a_time];
  double second[channels_at_a_time];
};

inline ChannelSums add_partials(const KernelArgs& args, const Range& some) {
  ChannelSums sums;
  const Index count = some.length();
  // Whole vectors. All of the array would take longer than the sums of few channels.
  for (Index i = 0; i < count; i += lanes) {
    store_doubles(sums.first + i, DoubleVec{});
    store_doubles(sums.second + i, DoubleVec{});
  }
  const double* partial = args.partials + some.begin;
  for (Index k = 0; k < args.order.chunks; ++k, partial += 2 * args.order.channels) {
    for (Index i = 0; i < count; ++i) {
      sums.first[i] += partial[i];
      sums.second[i] += partial[args.order.channels + i];
    }
  }
  return sums;
}

// Calls use(some channels, totals_of(some channels, their sums)). A run of one pass stores the
// totals or loads them instead.
template <class TotalsOf, class Use>
inline void finish_channels(const KernelArgs& args, const Range& channels,
                            const TotalsOf& totals_of, const Use& use) {
  const auto load_totals = [&](const Range& some) {
    ChannelTotals totals{};
    for (Index i = 0; i < some.length(); ++i) {
      totals.first[i] = args.totals.first[some.begin + i];
      totals.second[i] = args.totals.second[some.begin + i];
    }
    return totals;
  };
  for (Index first = channels.begin; first < channels.end; first += channels_at_a_time) {
    const Range some{first, minimum(first + channels_at_a_time, channels.end)};
    const ChannelTotals totals = args.config.pass == Pass::apply
                                     ? load_totals(some)
                                     : totals_of(some, add_partials(args, some));
    if (args.config.pass != Pass::reduce) {
      use(some, totals);
      continue;
    }
    for (Index i = 0; i < some.length(); ++i) {
      args.totals.first[some.begin + i] = totals.first[i];
      args.totals.second[some.begin + i] = totals.second[i];
    }
  }
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
