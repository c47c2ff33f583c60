#pragma once

// Sums of tiles of columns: each lane of a vector is a column.

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

// Calls add(j, access) for each pair of vectors of the columns [begin, end).
template <class Add>
inline void for_pairs(const Index begin, const Index end, const Add& add) {
  Index j = begin;
  for (; j + pair_lanes <= end; j += pair_lanes) add(j, Whole<2>{});
  if (const int rest = static_cast<int>(end - j); rest > 0) add(j, First<2>{rest});
}

// Adds the terms of n rows, `stride` elements apart, to the f32 sums of their first `width`
// columns.
template <int n, class Terms_>
[[gnu::flatten]] void add_rows(const Terms_& terms, const Index at, const Index stride,
                               const ColumnTables<typename Terms_::Element>& tables,
                               const Index width, float* factors, float* products) {
  for_pairs(0, width, [&](const Index j, const auto& access) {
    const PairCoefficients k = tables.at(j);
    PairSums sums;
    for (int row = 0; row < n; ++row) {
      const Index i = at + row * stride + j;
      prefetch_ahead(terms, i, pair_lanes);
      sums.add(terms.at(i, k, access));
    }
    add_to(factors + j, products + j, sums.a());
    add_to(factors + j + lanes, products + j + lanes, sums.b());
  });
}

// Adds terms_in_f32 rows to the f64 sums of some pairs of vectors of columns.
template <int pairs, class Terms_, class Access>
[[gnu::flatten]] inline void add_pairs_of_rows(const Terms_& terms, Index at, const Index stride,
                                               const ColumnTables<typename Terms_::Element>& tables,
                                               const Index first, double* factors, double* products,
                                               const Access& access) {
  PairSums sums[pairs];
  for (Index row = 0; row < terms_in_f32; ++row, at += stride) {
#pragma GCC unroll 4
    for (int i = 0; i < pairs; ++i) {
      const Index j = first + i * pair_lanes;
      prefetch_ahead(terms, at + j, pair_lanes);
      sums[i].add(terms.at(at + j, tables.at(j), access));
    }
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
  ColumnSums(const TileArgs& args, const Tile& tile, const TileScratch& scratch)
      : first_(tile.channels.begin * args.order.inner),
        // With several positions per row, a block has all channels.
        width_(args.order.repeat > 1 ? args.order.row
                                     : tile.channels.end * args.order.inner - first_),
        padded_((width_ + pair_lanes - 1) / pair_lanes * pair_lanes),
        stride_(args.order.row),
        terms_(args),
        tables_(args, first_),
        factors_(scratch.doubles),
        products_(scratch.doubles + padded_),
        f32_factors_(scratch.floats),
        f32_products_(scratch.floats + padded_) {
    if (!tile.begins) return;
    const auto count = static_cast<std::size_t>(scratch_per_column * padded_);
    std::memset(scratch.doubles, 0, count * sizeof(double));
    std::memset(scratch.floats, 0, count * sizeof(float));
  }

  // Adds terms_in_f32 consecutive rows, whose sums stay in registers.
  void add_rows_in_registers(const Index row) const {
    const Index at = first_ + row * stride_;
    constexpr int pairs = 4;
    constexpr Index step = pairs * pair_lanes;
    const Index whole = width_ / step * step;
    for (Index j = 0; j < whole; j += step) {
      add_pairs_of_rows<pairs>(terms_, at, stride_, tables_, j, factors_, products_, Whole<2>{});
    }
    for_pairs(whole, width_, [&](const Index j, const auto& access) {
      add_pairs_of_rows<1>(terms_, at, stride_, tables_, j, factors_, products_, access);
    });
  }

  // The following functions add to the f32 sums.
  void add_streams(const Index row, const Index apart) const { add<streams>(row, apart, width_); }
  void add_row(const Index row) const { add<1>(row, 0, width_); }
  void add_rest(const Index row, const Index columns) const { add<1>(row, 0, columns); }

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
  template <int n>
  void add(const Index row, const Index apart, const Index columns) const {
    add_rows<n>(terms_, first_ + row * stride_, apart * stride_, tables_, columns, f32_factors_,
                f32_products_);
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

  Index first_;
  Index width_;
  Index padded_;
  Index stride_;
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
void visit_rows(const SummationOrder& order, const Tile& tile, const ColumnSums<Terms_>& sums) {
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
  for (row += (streams - 1) * stream; row < rows.end; ++row) {
    sums.add_row(row);
    count_term();
  }
  if (const Index rest = rest_of(order, tile); rest > 0) {
    sums.add_rest(order.rows, rest);
    count_term();
  }
  sums.move_f32_to_f64();
}

// Adds the columns of each channel: first over the positions of a row, then over inner. The sum of
// channel c ends up in sums[c].
inline void add_columns_of_channels(const SummationOrder& order, const Index channels,
                                    double* __restrict sums) {
  const Index position = order.channels * order.inner;
  for (Index k = 1; k < order.repeat; ++k) {
    for (Index j = 0; j < position; ++j) sums[j] += sums[k * position + j];
  }
  if (order.inner == 1) return;
  for (Index c = 0; c < channels; ++c) {
    double sum = 0;
    for (Index i = 0; i < order.inner; ++i) sum += sums[c * order.inner + i];
    sums[c] = sum;
  }
}

template <class Terms_>
void reduce_columns(const TileArgs& args, const Tile& tile, const TileScratch& scratch) {
  const SummationOrder& order = args.order;
  const ColumnSums<Terms_> sums(args, tile, scratch);
  visit_rows(order, tile, sums);
  if (!tile.ends) return;
  double* const partial = args.partials + 2 * tile.chunk * order.channels + tile.channels.begin;
  const auto store_channels = [&](double* const columns, double* const to) {
    add_columns_of_channels(order, tile.channels.length(), columns);
    for (Index c = 0; c < tile.channels.length(); ++c) to[c] = columns[c];
  };
  store_channels(sums.factors(), partial);
  store_channels(sums.products(), partial + order.channels);
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
