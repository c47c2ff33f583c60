#pragma once

// The forward pass's statistics, from the sums of src - pivot and of its square.
//
// They lose precision when the pivot is far from the mean, measured in standard deviations. The
// pivot is the mean of some samples; where it turns out to be too far (outliers among the samples),
// the channel is summed again about the mean that the first sums gave.

#include <cstdint>
#include <type_traits>

#include "coefficient_tables.inl"
#include "finish_channels.inl"
#include "kernels.hpp"
#include "ports.inl"
#include "vector.hpp"
#include "vector_pair.hpp"

namespace onedsl::native::ONEDSL_ISA {
namespace {

// Largest squared distance of the pivot from the mean, in variances.
constexpr double farthest_pivot = 4;

// Return values rounded toward zero to multiples of a power of two, about an eighth of the spread.
// Then most src - pivot are exact, and the others are not all rounded in the same direction. If the
// spread is zero, return the value itself, so that the variance of equal values is zero.
inline Vec pivots_near(const DoubleVec& values, const DoubleVec& spreads) {
  constexpr std::uint64_t sign = 0x8000000000000000U;
  constexpr std::uint64_t exponent = 0x7ff0000000000000U;
  const auto rounded = [](const Doubles value, const Doubles spread) {
    const Doubles magnitude = keep_bits(value, ~sign);
    const Doubles step = keep_bits(spread, exponent) * 0.125;
    // The last place of a double of this size is the step, so a sum with it is a multiple.
    const Doubles large = step * 0x1p52;
    const Doubles multiple = (magnitude + large) - large;
    const Doubles toward_zero = multiple > magnitude ? multiple - step : multiple;
    const DoubleWords bits = reinterpret<DoubleWords>(magnitude < large ? toward_zero : magnitude);
    return reinterpret<Doubles>(bits | (reinterpret<DoubleWords>(value) & sign));
  };
  const Vec pivots = narrow(for_halves(rounded, values, spreads));
  // Zero times NaN or infinity is NaN.
  const Vec zero = broadcast(0) * pivots;
  return zero == zero ? pivots : broadcast(0);
}

// Return pivots near the means of some samples of channels. sample_of(i) is a vector.
template <class SampleOf>
Vec pivots_of_samples(const Index count, const SampleOf& sample_of) {
  Vec least = sample_of(0);
  Vec most = least;
  DoubleVec sum = widen(least);
  for (Index i = 1; i < count; ++i) {
    const Vec x = sample_of(i);
    sum = sum + widen(x);
    least = x < least ? x : least;
    most = x > most ? x : most;
  }
  return pivots_near(sum / static_cast<double>(count), widen(most) - widen(least));
}

template <class T>
void prepare_moments(const KernelArgs& args, const Range& channels) {
  const ChannelEntries entries(args);
  const Samples& samples = args.samples;
  const auto pivots_of = [&](const Index c, const auto& access) {
    const T* const src = static_cast<const T*>(samples.src) + c * samples.channel_stride;
    if (samples.channel_stride == 1) {
      return pivots_of_samples(samples.count,
                               [&](const Index i) { return access.read(src + samples.at[i]); });
    }
    T gathered[Samples::most][lanes] = {};
    for (Index k = 0; k < length(access); ++k) {
      for (Index i = 0; i < samples.count; ++i) {
        gathered[i][k] = src[samples.at[i] + k * samples.channel_stride];
      }
    }
    return pivots_of_samples(samples.count, [&](const Index i) { return load(gathered[i]); });
  };
  for_vectors(channels, [&](const Index c, const auto& access) {
    entries.set(c, access, TableValues{args.tables.pivot, pivots_of(c, access)});
  });
}

// Sets near_enough to false, and better pivots, where a pivot is too far from the mean.
inline ChannelTotals moment_totals(const KernelArgs& args, const Range& some,
                                   const ChannelSums& sums, bool& near_enough) {
  const Divisor count(args.per_channel);
  float* const pivots = args.tables.pivot;
  const ChannelEntries entries(args);
  ChannelTotals totals;
  for_vectors(some, [&](const Index c, const auto& access) {
    const Index i = c - some.begin;
    const DoubleVec sum_deviation = load_doubles(sums.first + i);
    const DoubleVec off = sum_deviation / count;
    const DoubleVec shifted = off * sum_deviation;
    const auto not_negative = [](const Doubles v) { return v < 0 ? Doubles{} : v; };
    const DoubleVec squares = for_halves(not_negative, load_doubles(sums.second + i) - shifted);
    const Vec pivot = entries.get(pivots, c, access);
    const DoubleVec mean = widen(pivot) + off;
    store_doubles(totals.first + i, mean);
    store_doubles(totals.second + i, squares);

    const auto is_far = [](const Doubles shift, const Doubles square) {
      return reinterpret<DoubleWords>(shift > farthest_pivot * square);
    };
    const DoubleWords low = is_far(shifted.low, squares.low);
    const DoubleWords high = is_far(shifted.high, squares.high);
    if (__builtin_expect(!any(low | high), 1)) return;
    near_enough = false;
    const DoubleVec stddev = for_halves(square_root, squares / count);
    const DoubleVec better = widen(pivots_near(mean, stddev));
    const DoubleVec before = widen(pivot);
    const DoubleVec chosen = {low != 0 ? better.low : before.low,
                              high != 0 ? better.high : before.high};
    entries.set(c, access, TableValues{pivots, narrow(chosen)});
  });
  return totals;
}

inline void use_moment_totals(const KernelArgs& args, const Range& some,
                              const ChannelTotals& totals) {
  const double momentum = args.config.attributes.momentum;
  const Divisor count(args.per_channel);
  const ChannelEntries entries(args);
  const bool inverse = args.config.variance_kind == VarianceKind::inverse_stddev;
  const double unbiased =
      args.config.attributes.unbiased ? args.per_channel / (args.per_channel - 1) : 1;
  const bool uses_rest = args.config.operation == Operation::forward_training;
  for_vectors(some, [&](const Index c, const auto& access) {
    const auto update = [&](const float* const before, const DoubleVec& batch, float* const after) {
      if (after == nullptr) return;
      const DoubleVec mixed =
          before == nullptr ? batch
                            : momentum * widen(access.read(before + c)) + (1 - momentum) * batch;
      access.write(after + c, narrow(mixed), false);
    };
    const DoubleVec mean = load_doubles(totals.first + (c - some.begin));
    const DoubleVec variance = load_doubles(totals.second + (c - some.begin)) / count;
    const Vec batch_mean = narrow(mean);
    const Vec batch_variance =
        narrow(inverse ? inverse_stddev(variance, args.config.attributes.epsilon) : variance);
    update(input(args, Input::mean), mean, output(args, Output::running_mean));
    update(input(args, Input::variance), unbiased * variance,
           output(args, Output::running_variance));
    access.write(output(args, Output::batch_mean) + c, batch_mean, false);
    access.write(output(args, Output::batch_variance) + c, batch_variance, false);
    const Vec rest = narrow(mean - widen(batch_mean));
    set_normalization(args, entries, c, access, batch_mean, batch_variance,
                      uses_rest ? &rest : nullptr);
  });
}

inline bool finish_moments(const KernelArgs& args, const Range& channels) {
  bool near_enough = true;
  finish_channels(
      args, channels,
      [&](const Range& some, const ChannelSums& sums) {
        return moment_totals(args, some, sums, near_enough);
      },
      [&](const Range& some, const ChannelTotals& totals) {
        use_moment_totals(args, some, totals);
      });
  return near_enough;
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
