#pragma once

// The sums of planes: `inner` is at least a vector long.

#include <cstddef>
#include <cstring>

#include "formulas.inl"
#include "kernels.hpp"
#include "pairs.hpp"
#include "simd.hpp"
#include "sums.inl"
#include "tables.inl"

namespace onedsl::native::ONEDSL_ISA {
namespace {

// Adds a piece of a plane to the sums of its channel, which are one for each lane.
template <class Terms_>
[[gnu::flatten]] void add_piece(const Terms_& all_terms, const Index at, const Index count,
                                const Coefficients& channel, double* weights, double* products) {
  const Terms_ terms = all_terms;
  const Coefficients k = channel;
  const PairCoefficients both{k, k};
  DoubleVec sum_weights = load_doubles(weights);
  DoubleVec sum_products = load_doubles(products);
  const auto add = [&](const Sums& few) {
    sum_weights = sum_weights + widen(few.weights);
    sum_products = sum_products + widen(few.products);
  };
  Index i = at;
  const Index piece_end = at + count;
  const auto add_pairs_up_to = [&](const Index end) {
    PairSums few;
    // Not unrolled: memory is read in its own order, not in one that suits the compiler.
#pragma GCC unroll 1
    for (; i < end; i += pair_lanes) few.add(terms.at(i, both, WholePair<>{}));
    add(few.a() + few.b());
  };
  constexpr Index tile = Index{terms_in_f32} * lanes;
  for (Index end = at + tile; end <= piece_end; end += tile) add_pairs_up_to(end);
  add_pairs_up_to(i + (piece_end - i) / pair_lanes * pair_lanes);
  Sums last{broadcast(0), broadcast(0)};
  if (i + lanes <= piece_end) {
    last = sums_of(terms.at(i, k, WholeVector<>{}));
    i += lanes;
  }
  if (const int rest = static_cast<int>(piece_end - i); rest > 0) {
    last = last + sums_of(terms.at(i, k, FirstOfVector{rest}));
  }
  add(last);
  store_doubles(weights, sum_weights);
  store_doubles(products, sum_products);
}

inline double sum_of_lanes(const double* sums) {
  double sum = 0;
  for (int i = 0; i < lanes; ++i) sum += sums[i];
  return sum;
}

// Each channel by itself: its sums do not depend on which others are in the part.
template <class Terms_>
void reduce_planes(const Task& task, const Part& part, const PartialScratch& scratch) {
  const Order& order = task.order;
  const Terms_ terms(task, part.offset);
  // For each channel, the lanes of one sum and then of the other.
  constexpr Index per_channel = scratch_per_plane(lanes);
  const Index doubles = length(part.channels) * per_channel;
  std::memset(scratch.doubles, 0, static_cast<std::size_t>(doubles) * sizeof(double));

  const Range rows = rows_of(order, part.chunk);
  for (Index row = rows.begin; row < rows.end; ++row) {
    const Piece piece = piece_of(order, row);
    double* sums = scratch.doubles;
    for (Index c = part.channels.begin; c < part.channels.end; ++c, sums += per_channel) {
      add_piece(terms, piece.begin + c * order.inner, piece.count, channel_coefficients(task, c),
                sums, sums + lanes);
    }
  }

  double* const partial = task.workspace.partials + 2 * part.partial * order.channels;
  const double* sums = scratch.doubles;
  for (Index c = part.channels.begin; c < part.channels.end; ++c, sums += per_channel) {
    put(part, partial[c], sum_of_lanes(sums));
    put(part, partial[order.channels + c], sum_of_lanes(sums + lanes));
  }
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
