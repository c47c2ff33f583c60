#pragma once

// Sums of steps of planes: a vector belongs to one channel.

#include <cstddef>
#include <cstring>

#include "coefficient_tables.inl"
#include "formulas.inl"
#include "kernels.hpp"
#include "sums.inl"
#include "vector.hpp"
#include "vector_pair.hpp"

namespace onedsl::native::ONEDSL_ISA {
namespace {

// The sums of a channel, one per lane.
struct LaneSums {
  DoubleVec factors;
  DoubleVec products;

  void add(const PairSums& few) {
    const VectorSums sums = few.a() + few.b();
    factors = factors + widen(sums.factors);
    products = products + widen(sums.products);
  }
};

// Adds pairs of vectors from element `i` on.
template <class Terms_>
void add_pairs(PairSums& few, const Terms_& terms, const PairCoefficients& both, Index i,
               const Index end) {
  using Element = typename Terms_::Element;
  // Unrolled, the compiler would not read memory in its order.
#pragma GCC unroll 1
  for (; i < end; i += pair_lanes) {
    if constexpr (Terms_::prefetches) {
      prefetch(terms, i + prefetch_distance<Element>, pair_lanes);
    }
    few.add(terms.at(i, both, Whole<2>{}));
  }
}

constexpr Index pairs_step = Index{terms_in_f32} * pair_lanes;

// Adds whole steps of pairs of vectors. Not inlined: GCC would keep a sum of bf16 on the stack,
// because the caller has too many variables.
template <class Terms_>
[[gnu::flatten, gnu::noinline]] void add_steps(LaneSums& all, const Terms_& all_terms,
                                               const Coefficients& channel, const Index first,
                                               const Index end) {
  LaneSums sums = all;
  const Terms_ terms = all_terms;
  const Coefficients k = channel;
  const PairCoefficients both{k, k};
  for (Index i = first; i < end; i += pairs_step) {
    PairSums few;
    add_pairs(few, terms, both, i, i + pairs_step);
    sums.add(few);
  }
  all = sums;
}

// Adds segments of a channel's planes, of neighboring positions, to the channel's sums, of which
// there is one per lane. In f32 at most 32 terms of a lane are summed: eight pairs of vectors, or
// what remains of all segments together (see SummationOrder::rows_together). `more_follow`: as many
// segments follow these and are prefetched.
template <class Terms_>
[[gnu::flatten]] void add_segments(const Terms_& all_terms, const Index segments, const Index first,
                                   const Index count, const Coefficients& channel,
                                   const bool more_follow, double* factors, double* products) {
  using Element = typename Terms_::Element;
  Terms_ terms = all_terms;
  const Coefficients k = channel;
  const PairCoefficients both{k, k};
  LaneSums sums{load_doubles(factors), load_doubles(products)};
  const Index in_steps = count / pairs_step * pairs_step;
  const Index in_pairs = count / pair_lanes * pair_lanes;
  const int rest = static_cast<int>(count - in_pairs);
  const Index end = first + count;
  PairSums remaining;
  for (Index segment = 0; segment < segments; ++segment, terms.move(1, 0)) {
    if (Terms_::prefetches && more_follow) {
      // Their beginnings: add_pairs() prefetches the elements after these.
      prefetch(moved(terms, segments, 0), first, minimum(count, prefetch_distance<Element> / 2));
    }
    if (in_steps > 0) add_steps(sums, terms, k, first, first + in_steps);
    add_pairs(remaining, terms, both, first + in_steps, first + in_pairs);
    if (rest > lanes && in_pairs > 0) {
      remaining.add(terms.at(end - pair_lanes, both, Last<2>{rest}));
    } else {
      if (rest >= lanes) remaining.add(terms.at(first + in_pairs, k, Whole<1>{}));
      if (rest % lanes > 0) remaining.add(terms.at(end - lanes, k, Last<1>{rest % lanes}));
    }
  }
  sums.add(remaining);
  store_doubles(factors, sums.factors);
  store_doubles(products, sums.products);
}

inline double sum_of_lanes(const double* sums) {
  double sum = 0;
  for (int i = 0; i < lanes; ++i) sum += sums[i];
  return sum;
}

// Sums each channel separately: its sums do not depend on which other channels are in the block.
template <class Terms_>
void reduce_planes(const KernelArgs& args, const Tile& tile, const TileScratch& scratch) {
  const SummationOrder& order = args.order;
  const Terms_ terms(args);
  // For each channel: the lanes of the sum of factors, then those of the sum of products.
  constexpr Index per_channel = scratch_per_plane(lanes);
  const Index doubles = tile.channels.length() * per_channel;
  std::memset(scratch.doubles, 0, static_cast<std::size_t>(doubles) * sizeof(double));

  const Range& rows = tile.rows;
  for (Index row = rows.begin; row < rows.end; row += order.rows_together) {
    const Segment segment = segment_of(order, row);
    const Index together = minimum(order.rows_together, rows.end - row);
    double* sums = scratch.doubles;
    for (Index c = tile.channels.begin; c < tile.channels.end; ++c, sums += per_channel) {
      add_segments(moved(terms, segment.position, c), together, segment.begin, segment.count,
                   broadcast_coefficients(args.tables, c),
                   args.exceeds_l2 && row + together < rows.end, sums, sums + lanes);
    }
  }

  double* const partial = args.partials + 2 * tile.chunk * order.channels;
  const double* sums = scratch.doubles;
  for (Index c = tile.channels.begin; c < tile.channels.end; ++c, sums += per_channel) {
    partial[c] = sum_of_lanes(sums);
    partial[order.channels + c] = sum_of_lanes(sums + lanes);
  }
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
