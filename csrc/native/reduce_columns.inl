#pragma once

// The sums of columns: `inner` is shorter than a vector.

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

// So many runs of rows are read side by side: memory answers more of them at a time than one, and
// the sums in cache are read and written once for all.
constexpr Index runs = 4;

// Calls add(j, stretch) for each pair of vectors of columns [begin, end). The last pair may be
// partly past them.
template <class Add>
inline void for_pairs(const Index begin, const Index end, const Add& add) {
  Index j = begin;
  for (; j + pair_lanes <= end; j += pair_lanes) add(j, WholePair<>{});
  if (const int rest = static_cast<int>(end - j); rest > 0) add(j, FirstOfPair{rest});
}

// Adds the terms of n rows, `stride` elements apart, to the f32 sums of their first `width`
// columns.
template <int n, class Terms_>
[[gnu::flatten]] void add_rows(const Terms_& terms, const Index at, const Index stride,
                               const ColumnTables<typename Terms_::Element>& tables,
                               const Index width, float* weights, float* products) {
  for_pairs(0, width, [&](const Index j, const auto& stretch) {
    const PairCoefficients k = tables.at(j);
    PairSums sums;
    for (int row = 0; row < n; ++row) {
      const Index i = at + row * stride + j;
      prefetch(terms, i + elements_ahead<typename Terms_::Element>, pair_lanes);
      sums.add(terms.at(i, k, stretch));
    }
    add_to(weights + j, products + j, sums.a());
    add_to(weights + j + lanes, products + j + lanes, sums.b());
  });
}

// Adds terms_in_f32 rows to the f64 sums of some pairs of vectors of columns.
template <int pairs, class Terms_, class Stretch>
[[gnu::flatten]] inline void add_pairs_of_tile(const Terms_& terms, Index at, const Index stride,
                                               const ColumnTables<typename Terms_::Element>& tables,
                                               const Index first, double* weights, double* products,
                                               const Stretch& stretch) {
  PairSums sums[pairs];
  for (int row = 0; row < terms_in_f32; ++row, at += stride) {
#pragma GCC unroll 4
    for (int i = 0; i < pairs; ++i) {
      const Index j = first + i * pair_lanes;
      prefetch(terms, at + j + elements_ahead<typename Terms_::Element>, pair_lanes);
      sums[i].add(terms.at(at + j, tables.at(j), stretch));
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < pairs; ++i) {
    const Index j = first + i * pair_lanes;
    add_to(weights + j, products + j, sums[i].a());
    add_to(weights + j + lanes, products + j + lanes, sums[i].b());
  }
}

// The sums of a block of neighbouring columns, each by itself: what a function adds to a column
// does not depend on which others are in the block.
template <class Terms_>
class ColumnSums {
 public:
  ColumnSums(const Task& task, const Part& part, const PartialScratch& scratch)
      : first_(part.channels.begin * task.order.inner),
        // A row that repeats has all channels in it.
        width_(task.order.repeat > 1 ? task.order.row
                                     : part.channels.end * task.order.inner - first_),
        padded_((width_ + pair_lanes - 1) / pair_lanes * pair_lanes),
        stride_(task.order.row),
        terms_(task, part.offset + first_),
        tables_(task, first_),
        weights_(scratch.doubles),
        products_(scratch.doubles + padded_),
        few_weights_(scratch.floats),
        few_products_(scratch.floats + padded_) {
    const auto count = static_cast<std::size_t>(scratch_per_column * padded_);
    std::memset(scratch.doubles, 0, count * sizeof(double));
    std::memset(scratch.floats, 0, count * sizeof(float));
  }

  // terms_in_f32 rows, one after the other: their sums stay in registers.
  void add_tile(const Index row) const {
    const Index at = row * stride_;
    constexpr int pairs = 4;
    constexpr Index block = pairs * pair_lanes;
    const Index whole = width_ / block * block;
    for (Index j = 0; j < whole; j += block) {
      add_pairs_of_tile<pairs>(terms_, at, stride_, tables_, j, weights_, products_, WholePair<>{});
    }
    for_pairs(whole, width_, [&](const Index j, const auto& stretch) {
      add_pairs_of_tile<1>(terms_, at, stride_, tables_, j, weights_, products_, stretch);
    });
  }

  // These add to sums of few terms, in f32.
  void add_side_by_side(const Index row, const Index apart) const { add<runs>(row, apart, width_); }
  void add_row(const Index row) const { add<1>(row, 0, width_); }
  void add_beginning_of_row(const Index row, const Index columns) const { add<1>(row, 0, columns); }

  void move_few_to_f64() const {
    for (Index j = 0; j < padded_; j += lanes) {
      add_to(weights_ + j, products_ + j, {load(few_weights_ + j), load(few_products_ + j)});
      store(few_weights_ + j, broadcast(0));
      store(few_products_ + j, broadcast(0));
    }
  }

  // The sums in the columns' order.
  double* weights() const { return in_order(weights_); }
  double* products() const { return in_order(products_); }

 private:
  template <int n>
  void add(const Index row, const Index apart, const Index columns) const {
    add_rows<n>(terms_, row * stride_, apart * stride_, tables_, columns, few_weights_,
                few_products_);
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
  double* weights_;
  double* products_;
  float* few_weights_;
  float* few_products_;
};

// The order in which the rows of a chunk are added up, in every column alike. It goes by the
// SummationOrder and the chunk alone, and is not to learn how many columns the block has, for that
// depends on the number of threads.
template <class Terms_>
void visit_rows(const SummationOrder& order, const Index chunk, const ColumnSums<Terms_>& sums) {
  const Range rows = rows_of(order, chunk);
  Index row = rows.begin;
  if (order.rows_in_registers) {
    for (; row + terms_in_f32 <= rows.end; row += terms_in_f32) sums.add_tile(row);
  }
  Index terms = 0;
  const auto count_term = [&] {
    if (++terms % terms_in_f32 == 0) sums.move_few_to_f64();
  };
  const Index run = (rows.end - row) / runs;
  for (const Index stop = row + run; row < stop; ++row) {
    sums.add_side_by_side(row, run);
    count_term();
  }
  for (row += (runs - 1) * run; row < rows.end; ++row) {
    sums.add_row(row);
    count_term();
  }
  if (const Index rest = rest_of(order, chunk); rest > 0) {
    sums.add_beginning_of_row(order.rows, rest);
    count_term();
  }
  sums.move_few_to_f64();
}

// Adds up the columns of each channel: first those of one place in the position, over all positions
// of a row, then these. The channels' sums go where the first columns' were.
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
void reduce_columns(const Task& task, const Part& part, const PartialScratch& scratch) {
  const SummationOrder& order = task.order;
  const ColumnSums<Terms_> sums(task, part, scratch);
  visit_rows(order, part.chunk, sums);
  double* const partial =
      task.workspace.partials + 2 * part.partial * order.channels + part.channels.begin;
  const auto put_channels = [&](double* const columns, double* const to) {
    add_columns_of_channels(order, length(part.channels), columns);
    for (Index c = 0; c < length(part.channels); ++c) put(part, to[c], columns[c]);
  };
  put_channels(sums.weights(), partial);
  put_channels(sums.products(), partial + order.channels);
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
