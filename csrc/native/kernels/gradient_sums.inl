#pragma once

// The gradient's sums: the pivot before, diff_gamma, diff_beta and the coefficients after.

#include "coefficient_tables.inl"
#include "finish_channels.inl"
#include "kernels.hpp"
#include "ports.inl"
#include "vector.hpp"
#include "vector_pair.hpp"

namespace onedsl::native::ONEDSL_ISA {
namespace {

// The pivot is the mean with its last bits cleared. In f32, src - mean is rounded alike for all src
// of one binade, an error that grows with the number of elements; with few bits in the pivot the
// difference is exact. gradient_total() corrects the sum for the difference of pivot and mean.
// Few elements are summed about the mean itself, so that zeros come out exact.
constexpr double few_elements = 8192;

inline Vec pivots_near_means(const KernelArgs& args, const Vec means) {
  return args.per_channel <= few_elements ? means : keep_bits(means, 0xfffff800U);
}

inline void prepare_gradient(const KernelArgs& args, const Range& channels) {
  const ChannelEntries entries(args);
  for_vectors(channels, [&](const Index c, const auto& access) {
    const Vec pivots = pivots_near_means(args, access.read(input(args, Input::mean) + c));
    entries.set(c, access, TableValues{args.tables.pivot, pivots});
  });
}

inline void prepare_masked_gradient(const KernelArgs& args, const Range& channels) {
  prepare_gradient(args, channels);
  const ChannelEntries entries(args);
  for_vectors(channels, [&](const Index c, const auto& access) {
    set_normalization(args, entries, c, access, access.read(input(args, Input::mean) + c),
                      access.read(input(args, Input::variance) + c));
  });
}

inline ChannelTotals gradient_totals(const KernelArgs& args, const Range& some,
                                     const ChannelSums& sums) {
  ChannelTotals totals;
  for_vectors(some, [&](const Index c, const auto& access) {
    const Index i = c - some.begin;
    const Vec mean = access.read(input(args, Input::mean) + c);
    const DoubleVec from_pivot_to_mean = widen(pivots_near_means(args, mean)) - widen(mean);
    const DoubleVec sum_diff_dst = load_doubles(sums.first + i);
    // An infinite sum would turn an infinite product into NaN.
    const auto where_finite = [](const Doubles product, const Doubles sum) {
      const Doubles zero = Doubles{} * sum;
      return zero == zero ? product : Doubles{};
    };
    const DoubleVec correction =
        for_halves(where_finite, from_pivot_to_mean * sum_diff_dst, sum_diff_dst);
    const DoubleVec sum_centered = load_doubles(sums.second + i) + correction;
    const Vec variance = access.read(input(args, Input::variance) + c);
    store_doubles(totals.first + i, sum_diff_dst);
    store_doubles(totals.second + i, sum_centered * inverse_stddev_of(args.config, variance));
  });
  return totals;
}

inline void use_gradient_totals(const KernelArgs& args, const Range& some,
                                const ChannelTotals& totals) {
  const Tables& tables = args.tables;
  const ChannelEntries entries(args);
  const Divisor count(args.per_channel);
  const bool batch = args.config.statistics_kind == StatisticsKind::batch;
  for_vectors(some, [&](const Index c, const auto& access) {
    const DoubleVec diff_beta = load_doubles(totals.first + (c - some.begin));
    const DoubleVec diff_gamma = load_doubles(totals.second + (c - some.begin));
    const Vec variance = access.read(input(args, Input::variance) + c);
    const DoubleVec inverse_stddev = inverse_stddev_of(args.config, variance);
    const DoubleVec scale = widen(gamma_of(args, c, access)) * inverse_stddev;
    const Vec shift = batch ? coefficient(diff_beta / count) : broadcast(0);
    const Vec slope = batch ? coefficient(diff_gamma / count * inverse_stddev) : broadcast(0);
    const Vec mean = coefficient(access.read(input(args, Input::mean) + c));
    entries.set(c, access, TableValues{tables.mean, mean},
                TableValues{tables.scale, coefficient(scale)}, TableValues{tables.shift, shift},
                TableValues{tables.slope, slope});
    const auto write = [&](const Output port, const DoubleVec& value) {
      float* const to = output(args, port);
      if (to != nullptr) access.write(to + c, narrow(value), false);
    };
    write(Output::diff_gamma, diff_gamma);
    write(Output::diff_beta, diff_beta);
  });
}

inline bool finish_gradient(const KernelArgs& args, const Range& channels) {
  finish_channels(
      args, channels,
      [&](const Range& some, const ChannelSums& sums) { return gradient_totals(args, some, sums); },
      [&](const Range& some, const ChannelTotals& totals) {
        use_gradient_totals(args, some, totals);
      });
  return true;
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
