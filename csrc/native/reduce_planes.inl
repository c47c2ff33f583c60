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

// Adds pieces of a channel's planes, `apart` elements from each other, to its sums, which are one
// for each lane. f32 holds the sums of 32 terms of a lane at most: of eight pairs of vectors, or of
// what remains of all pieces together (see SummationOrder::rows_together). Whether as many more
// follow, further on, tells what to ask memory for.
template <class Terms_>
[[gnu::flatten]] void add_pieces(const Terms_& all_terms, const Index first, const Index pieces,
                                 const Index apart, const Index count, const Coefficients& channel,
                                 const bool more_follow, double* weights, double* products) {
  using Element = typename Terms_::Element;
  const Terms_ terms = all_terms;
  const Coefficients k = channel;
  const PairCoefficients both{k, k};
  DoubleVec sum_weights = load_doubles(weights);
  DoubleVec sum_products = load_doubles(products);
  const auto add = [&](const PairSums& few) {
    const Sums sums = few.a() + few.b();
    sum_weights = sum_weights + widen(sums.weights);
    sum_products = sum_products + widen(sums.products);
  };
  const auto add_pairs = [&](PairSums& few, Index i, const Index end) {
  // Not unrolled: memory is read in its own order, not in one that suits the compiler.
#pragma GCC unroll 1
    for (; i < end; i += pair_lanes) {
      prefetch(terms, i + elements_ahead<Element>, pair_lanes);
      few.add(terms.at(i, both, WholePair<>{}));
    }
  };
  constexpr Index tile = Index{terms_in_f32} * pair_lanes;
  const Index in_tiles = count / tile * tile;
  const Index in_pairs = count / pair_lanes * pair_lanes;
  const int rest = static_cast<int>(count - in_pairs);
  PairSums remaining;
  for (Index at = first; at < first + pieces * apart; at += apart) {
    if (more_follow) {
      // Their beginnings: what is further on is asked for on the way.
      prefetch(terms, at + pieces * apart, minimum(count, elements_ahead<Element> / 2));
    }
    for (Index i = at; i < at + in_tiles; i += tile) {
      PairSums few;
      add_pairs(few, i, i + tile);
      add(few);
    }
    add_pairs(remaining, at + in_tiles, at + in_pairs);
    const Index end = at + count;
    if (rest > lanes && in_pairs > 0) {
      remaining.add(terms.at(end - pair_lanes, both, LastOfPair{rest}));
    } else {
      if (rest >= lanes) remaining.add(terms.at(at + in_pairs, k, WholeVector<>{}));
      if (rest % lanes > 0) remaining.add(terms.at(end - lanes, k, LastOfVector{rest % lanes}));
    }
  }
  add(remaining);
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
  const SummationOrder& order = task.order;
  const Terms_ terms(task, part.offset);
  // For each channel, the lanes of one sum and then of the other.
  constexpr Index per_channel = scratch_per_plane(lanes);
  const Index doubles = length(part.channels) * per_channel;
  std::memset(scratch.doubles, 0, static_cast<std::size_t>(doubles) * sizeof(double));

  const Range rows = rows_of(order, part.chunk);
  for (Index row = rows.begin; row < rows.end; row += order.rows_together) {
    const Piece piece = piece_of(order, row);
    const Index together = minimum(order.rows_together, rows.end - row);
    double* sums = scratch.doubles;
    for (Index c = part.channels.begin; c < part.channels.end; ++c, sums += per_channel) {
      add_pieces(terms, piece.begin + c * order.inner, together, order.row, piece.count,
                 channel_coefficients(task, c), task.far && row + together < rows.end, sums,
                 sums + lanes);
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
