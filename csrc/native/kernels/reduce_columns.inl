#pragma once

// Sums of tiles of columns: each lane of a vector is a column.

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "coefficient_tables.inl"
#include "formulas.inl"
#include "kernels.hpp"
#include "sums.inl"
#include "vector.hpp"
#include "vector_pair.hpp"

namespace onedsl::native::ONEDSL_ISA {
namespace {

// Calls add(j, access) for each pair of vectors of the columns [begin, end).
template <class Add>
inline void for_pairs(const Index begin, const Index end, const Add& add) {
  Index j = begin;
  for (; j + pair_lanes <= end; j += pair_lanes) add(j, Whole<2>{});
  if (const int rest = static_cast<int>(end - j); rest > 0) add(j, First<2>{rest});
}

// Adds the terms of n rows, `apart` positions from each other, to the f32 sums of their first
// `width` columns.
template <int n, class Terms_>
[[gnu::flatten]] void add_rows(const Terms_& terms, const Index apart,
                               const ColumnTables<typename Terms_::Element>& tables,
                               const Index width, float* factors, float* products) {
  for_pairs(0, width, [&](const Index j, const auto& access) {
    const PairCoefficients k = tables.at(j);
    PairSums sums;
    Terms_ row = terms;
    for (int i = 0; i < n; ++i, row.move(apart, 0)) {
      if constexpr (Terms_::prefetches) prefetch_ahead(row, j, pair_lanes);
      sums.add(row.at(j, k, access));
    }
    add_to(factors + j, products + j, sums.a());
    add_to(factors + j + lanes, products + j + lanes, sums.b());
  });
}

// Adds terms_in_f32 rows of columns to the f64 sums of some pairs of vectors. The pairs are in
// `runs` positions, which are no neighbors in memory. The rows are `apart` positions from each
// other.
template <int pairs, int runs, class Terms_, class Access>
[[gnu::flatten]] inline void add_pairs_of_rows(const Terms_& terms, const Index apart,
                                               const ColumnTables<typename Terms_::Element>& tables,
                                               const Index first, double* factors, double* products,
                                               const Access& access) {
  constexpr int pairs_of_run = pairs / runs;
  PairSums sums[pairs];
  Terms_ row = terms;
  for (Index n = 0; n < terms_in_f32; ++n) {
    Terms_ run = row;
#pragma GCC unroll 4
    for (int i = 0; i < pairs; ++i) {
      const Index j = first + i % pairs_of_run * pair_lanes;
      if constexpr (Terms_::prefetches) prefetch_ahead(run, j, pair_lanes);
      sums[i].add(run.at(j, tables.at(first + i * pair_lanes), access));
      if (runs > 1 && i % pairs_of_run == pairs_of_run - 1) run.move(1, 0);
    }
    row.move(apart, 0);
  }
#pragma GCC unroll 4
  for (int i = 0; i < pairs; ++i) {
    const Index j = first + i * pair_lanes;
    add_to(factors + j, products + j, sums[i].a());
    add_to(factors + j + lanes, products + j + lanes, sums[i].b());
  }
}

// The sums of a block's columns. What is added to a column does not depend on which other columns
// are in the block.
template <class Terms_>
class ColumnSums {
 public:
  ColumnSums(const KernelArgs& args, const Tile& tile, const TileScratch& scratch)
      : repeat_(args.order.repeat),
        // With several positions per row, a block has all channels.
        width_(tile.channels.length() * args.order.inner * repeat_),
        run_(args.neighboring_positions ? width_ : width_ / repeat_),
        padded_((width_ + pair_lanes - 1) / pair_lanes * pair_lanes),
        terms_(moved(Terms_(args), 0, tile.channels.begin)),
        tables_(args, tile.channels.begin * args.order.inner),
        factors_(scratch.doubles),
        products_(scratch.doubles + padded_),
        f32_factors_(scratch.floats),
        f32_products_(scratch.floats + padded_) {
    const auto count = static_cast<std::size_t>(scratch_per_column * padded_);
    std::memset(scratch.doubles, 0, count * sizeof(double));
    std::memset(scratch.floats, 0, count * sizeof(float));
  }

  // Adds terms_in_f32 consecutive rows, whose sums stay in registers.
  void add_rows_in_registers(const Index row) const {
    constexpr int pairs = 4;
    const Terms_ terms = moved(terms_, row * repeat_, 0);
    const auto add_runs = [&](auto runs) {
      add_pairs_of_rows<pairs, runs>(terms, repeat_, tables_, 0, factors_, products_, Whole<2>{});
    };
    // A row of several positions has all pairs, and a position has 32 elements or more.
    if constexpr (pair_lanes >= 16) {
      if (run_ == width_ / 2) return add_runs(std::integral_constant<int, 2>());
    }
    if constexpr (pair_lanes >= 32) {
      if (run_ == width_ / 4) return add_runs(std::integral_constant<int, 4>());
    }
    constexpr Index step = pairs * pair_lanes;
    const Index whole = width_ / step * step;
    for (Index j = 0; j < whole; j += step) {
      add_pairs_of_rows<pairs, 1>(terms, repeat_, tables_, j, factors_, products_, Whole<2>{});
    }
    for_pairs(whole, width_, [&](const Index j, const auto& access) {
      add_pairs_of_rows<1, 1>(terms, repeat_, tables_, j, factors_, products_, access);
    });
  }

  // The following functions add to the f32 sums.
  void add_streams(const Index row, const Index apart) const { add<streams>(row, apart, width_); }
  // `rest`: the last row, if it has fewer columns.
  void add_row(const Index row, const Index rest) const {
    add<1>(row, 0, rest > 0 ? rest : width_);
  }

  void move_f32_to_f64() const {
    for (Index j = 0; j < padded_; j += lanes) {
      add_to(factors_ + j, products_ + j, {load(f32_factors_ + j), load(f32_products_ + j)});
      store(f32_factors_ + j, broadcast(0));
      store(f32_products_ + j, broadcast(0));
    }
  }

  // Return the sums in the order of the columns.
  double* factors() const { return in_order(factors_); }
  double* products() const { return in_order(products_); }

 private:
  using Element = typename Terms_::Element;

  template <int n>
  void add(const Index row, const Index apart, const Index columns) const {
    for_runs(row, columns, [&](const Terms_& terms, const Index begin, const Index count) {
      add_rows<n>(terms, apart * repeat_, tables_.after(begin), count, f32_factors_ + begin,
                  f32_products_ + begin);
    });
  }

  // Calls add(terms, begin, count) for the parts of a row that are neighbors in memory: the terms
  // of the columns [begin, begin + count).
  template <class Add>
  void for_runs(const Index row, const Index columns, const Add& add) const {
    Terms_ terms = moved(terms_, row * repeat_, 0);
    for (Index begin = 0; begin < columns; begin += run_) {
      add(terms, begin, minimum(run_, columns - begin));
      terms.move(1, 0);
    }
  }

  double* in_order(double* const sums) const {
    if constexpr (splits_even_odd<typename Terms_::Element>) {
      for (Index j = 0; j < padded_; j += pair_lanes) {
        double split[pair_lanes];
        std::memcpy(split, sums + j, sizeof split);
        for (Index i = 0; i < lanes; ++i) {
          sums[j + 2 * i] = split[i];
          sums[j + 2 * i + 1] = split[lanes + i];
        }
      }
    }
    return sums;
  }

  Index repeat_;
  Index width_;
  Index run_;  // columns that are neighbors in memory
  Index padded_;
  Terms_ terms_;
  ColumnTables<typename Terms_::Element> tables_;
  double* factors_;
  double* products_;
  float* f32_factors_;
  float* f32_products_;
};

// Adds the rows of a chunk to every column in the same order. The order depends on the
// SummationOrder and the chunk alone, and must not depend on the width of the block, which depends
// on the number of threads.
template <class Terms_>
[[gnu::always_inline]] inline void visit_rows(const SummationOrder& order, const Tile& tile,
                                              const ColumnSums<Terms_>& sums) {
  const Range& rows = tile.rows;
  Index row = rows.begin;
  if (order.rows_in_registers) {
    for (; row + terms_in_f32 <= rows.end; row += terms_in_f32) sums.add_rows_in_registers(row);
  }
  Index terms = 0;
  const auto count_term = [&] {
    if (++terms % terms_in_f32 == 0) sums.move_f32_to_f64();
  };
  const Index stream = (rows.end - row) / streams;
  for (const Index stop = row + stream; row < stop; ++row) {
    sums.add_streams(row, stream);
    count_term();
  }
  const Index rest = rest_of(order, tile);
  const Index end = rows.end + (rest > 0 ? 1 : 0);
  for (row += (streams - 1) * stream; row < end; ++row) {
    sums.add_row(row, row == rows.end ? rest : 0);
    count_term();
  }
  sums.move_f32_to_f64();
}

// Adds the columns of each channel, first over the positions of a row, then over inner, and stores
// the sums of the channels.
inline void store_channels(const SummationOrder& order, const Index channels,
                           double* __restrict sums, double* __restrict stored) {
  const Index position = order.channels * order.inner;
  for (Index k = 1; k < order.repeat; ++k) {
    for (Index j = 0; j < position; ++j) sums[j] += sums[k * position + j];
  }
  if (order.inner == 1) {
    for (Index c = 0; c < channels; ++c) stored[c] = sums[c];
    return;
  }
  for (Index c = 0; c < channels; ++c) {
    double sum = 0;
    for (Index i = 0; i < order.inner; ++i) sum += sums[c * order.inner + i];
    stored[c] = sum;
  }
}

template <class Terms_>
void reduce_columns(const KernelArgs& args, const Tile& tile, const TileScratch& scratch) {
  const SummationOrder& order = args.order;
  const ColumnSums<Terms_> sums(args, tile, scratch);
  visit_rows(order, tile, sums);
  double* const partial = args.partials + 2 * tile.chunk * order.channels + tile.channels.begin;
  const Index channels = tile.channels.length();
  store_channels(order, channels, sums.factors(), partial);
  store_channels(order, channels, sums.products(), partial + order.channels);
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
