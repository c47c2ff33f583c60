#pragma once

// The two sums of every channel: of diff_dst, and of the product diff_dst * (src - pivot).

#include <cstddef>
#include <cstring>

#include "kernels.hpp"
#include "pairs.hpp"
#include "simd.hpp"
#include "tables.inl"

namespace onedsl::native::ONEDSL_ISA {
namespace {

// f32 holds the sums of so many terms, then f64 takes over.
constexpr int terms_in_f32 = 8;

struct Sums {
  Vec diff_dst;
  Vec product;
};

inline Sums operator+(const Sums& a, const Sums& b) {
  return {a.diff_dst + b.diff_dst, a.product + b.product};
}

// The lanes past the first n add nothing, whatever the pivot.
template <class T>
inline Sums sum_first(const int n, const T* src, const T* diff_dst, const Vec pivot) {
  const Vec d = load_first(n, diff_dst);
  return {d, d * (select_first(n, load_first(n, src), pivot) - pivot)};
}

struct PairSums {
  VecPair diff_dst{};
  VecPair product{};

  void add(const VecPair& x, const VecPair& d, const VecPair& pivot) {
    diff_dst = {diff_dst.a + d.a, diff_dst.b + d.b};
    product = {multiply_add(d.a, x.a - pivot.a, product.a),
               multiply_add(d.b, x.b - pivot.b, product.b)};
  }
  Sums a() const { return {diff_dst.a, product.a}; }
  Sums b() const { return {diff_dst.b, product.b}; }
};

// Adds f32 sums to those in memory, in either type.
inline void add_to(float* diff_dst, float* product, const Sums& sums) {
  store(diff_dst, load(diff_dst) + sums.diff_dst);
  store(product, load(product) + sums.product);
}
inline void add_to(double* diff_dst, double* product, const Sums& sums) {
  store_doubles(diff_dst, load_doubles(diff_dst) + widen(sums.diff_dst));
  store_doubles(product, load_doubles(product) + widen(sums.product));
}

inline void put(const Part& part, double& partial, const double sum) {
  partial = part.adds_to_partial ? partial + sum : sum;
}

// ---- Columns ----

// So many runs of rows are read side by side: memory answers more of them at a time than one, and
// the sums in cache are read and written once for all.
constexpr Index runs = 4;

// Calls add(j, load) for each pair of vectors of columns [begin, end). The last pair may be partly
// past them: load gives zero there.
template <class T, class Add>
inline void for_pairs(const Index begin, const Index end, const Add& add) {
  Index j = begin;
  for (; j + 2 * lanes <= end; j += 2 * lanes) add(j, [](const T* p) { return load_pair(p); });
  if (const int rest = static_cast<int>(end - j); rest > 0) {
    add(j, [rest](const T* p) { return load_pair_first(rest, p); });
  }
}

// Adds n rows, `stride` elements apart, to the f32 sums of their first `width` columns.
template <int n, class T>
void add_rows(const T* src, const T* diff_dst, const Index stride, const ColumnTable<T>& pivot,
              const Index width, float* sum_diff_dst, float* sum_product) {
  for_pairs<T>(0, width, [&](const Index j, const auto& load_at) {
    const VecPair m = pivot.at(j);
    PairSums sums;
    for (int k = 0; k < n; ++k) {
      sums.add(load_at(src + k * stride + j), load_at(diff_dst + k * stride + j), m);
    }
    add_to(sum_diff_dst + j, sum_product + j, sums.a());
    add_to(sum_diff_dst + j + lanes, sum_product + j + lanes, sums.b());
  });
}

// Adds terms_in_f32 rows to the f64 sums of some pairs of vectors of columns.
template <int pairs, class T, class Load>
inline void add_pairs_of_tile(const T* src, const T* diff_dst, const Index stride,
                              const ColumnTable<T>& pivot, const Index first, double* sum_diff_dst,
                              double* sum_product, const Load& load_at) {
  PairSums sums[pairs];
  for (int row = 0; row < terms_in_f32; ++row, src += stride, diff_dst += stride) {
#pragma GCC unroll 4
    for (int i = 0; i < pairs; ++i) {
      const Index j = first + i * 2 * lanes;
      sums[i].add(load_at(src + j), load_at(diff_dst + j), pivot.at(j));
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < pairs; ++i) {
    const Index j = first + i * 2 * lanes;
    add_to(sum_diff_dst + j, sum_product + j, sums[i].a());
    add_to(sum_diff_dst + j + lanes, sum_product + j + lanes, sums[i].b());
  }
}

// The sums of a block of neighbouring columns, each by itself: what a function adds to a column
// does not depend on which others are in the block.
template <class T>
class ColumnSums {
 public:
  ColumnSums(const Task& task, const Part& part, const PartialScratch& scratch)
      : first_(part.channels.begin * task.order.inner),
        // A row that repeats has all channels in it.
        width_(task.order.repeat > 1 ? task.order.row
                                     : part.channels.end * task.order.inner - first_),
        padded_((width_ + 2 * lanes - 1) / (2 * lanes) * (2 * lanes)),
        stride_(task.order.row),
        src_(static_cast<const T*>(task.tensors.src) + part.offset + first_),
        diff_dst_(static_cast<const T*>(task.tensors.diff_dst) + part.offset + first_),
        pivot_(task, task.workspace.tables.pivot, first_),
        diff_dst_sums_(scratch.doubles),
        product_sums_(scratch.doubles + padded_),
        few_diff_dst_(scratch.floats),
        few_product_(scratch.floats + padded_) {
    const auto count = static_cast<std::size_t>(scratch_per_column * padded_);
    std::memset(scratch.doubles, 0, count * sizeof(double));
    std::memset(scratch.floats, 0, count * sizeof(float));
  }

  // terms_in_f32 rows, one after the other: their sums stay in registers.
  void add_tile(const Index row) const {
    const T* const x = src_ + row * stride_;
    const T* const d = diff_dst_ + row * stride_;
    constexpr int pairs = 4;
    const Index whole = width_ / (pairs * 2 * lanes) * (pairs * 2 * lanes);
    for (Index j = 0; j < whole; j += pairs * 2 * lanes) {
      add_pairs_of_tile<pairs>(x, d, stride_, pivot_, j, diff_dst_sums_, product_sums_,
                               [](const T* p) { return load_pair(p); });
    }
    for_pairs<T>(whole, width_, [&](const Index j, const auto& load_at) {
      add_pairs_of_tile<1>(x, d, stride_, pivot_, j, diff_dst_sums_, product_sums_, load_at);
    });
  }

  // These add to sums of few terms, in f32.
  void add_side_by_side(const Index row, const Index apart) const { add<runs>(row, apart, width_); }
  void add_row(const Index row) const { add<1>(row, 0, width_); }
  void add_beginning_of_row(const Index row, const Index columns) const { add<1>(row, 0, columns); }

  void move_few_to_f64() const {
    for (Index j = 0; j < padded_; j += lanes) {
      add_to(diff_dst_sums_ + j, product_sums_ + j,
             {load(few_diff_dst_ + j), load(few_product_ + j)});
      store(few_diff_dst_ + j, broadcast(0));
      store(few_product_ + j, broadcast(0));
    }
  }

  // The sums in the columns' order.
  double* diff_dst() const { return in_order(diff_dst_sums_); }
  double* product() const { return in_order(product_sums_); }

 private:
  template <int n>
  void add(const Index row, const Index apart, const Index columns) const {
    add_rows<n>(src_ + row * stride_, diff_dst_ + row * stride_, apart * stride_, pivot_, columns,
                few_diff_dst_, few_product_);
  }

  double* in_order(double* const sums) const {
    if constexpr (splits_even_odd<T>) {
      for (Index j = 0; j < padded_; j += 2 * lanes) {
        double split[2 * lanes];
        std::memcpy(split, sums + j, sizeof split);
        for (int i = 0; i < lanes; ++i) {
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
  const T* src_;
  const T* diff_dst_;
  ColumnTable<T> pivot_;
  double* diff_dst_sums_;
  double* product_sums_;
  float* few_diff_dst_;
  float* few_product_;
};

// The order in which the rows of a chunk are added up, in every column alike. It goes by the Order
// and the chunk alone, and is not to learn how many columns the block has, for that depends on the
// number of threads.
template <class T>
void visit_rows(const Order& order, const Index chunk, const ColumnSums<T>& sums) {
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
inline void add_columns_of_channels(const Order& order, const Index channels,
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

template <class T>
void reduce_columns(const Task& task, const Part& part, const PartialScratch& scratch) {
  const Order& order = task.order;
  const ColumnSums<T> sums(task, part, scratch);
  visit_rows(order, part.chunk, sums);
  double* const partial =
      task.workspace.partials + 2 * part.partial * order.channels + part.channels.begin;
  const auto put_channels = [&](double* const columns, double* const to) {
    add_columns_of_channels(order, length(part.channels), columns);
    for (Index c = 0; c < length(part.channels); ++c) put(part, to[c], columns[c]);
  };
  put_channels(sums.diff_dst(), partial);
  put_channels(sums.product(), partial + order.channels);
}

// ---- Planes ----

// Adds a piece of a plane to the sums of its channel, which are one for each lane.
template <class T>
void add_piece(const T* src, const T* diff_dst, const Index count, const Vec pivot,
               double* diff_dst_sums, double* product_sums) {
  DoubleVec sum_diff_dst = load_doubles(diff_dst_sums);
  DoubleVec sum_product = load_doubles(product_sums);
  const auto add = [&](const Sums& few) {
    sum_diff_dst = sum_diff_dst + widen(few.diff_dst);
    sum_product = sum_product + widen(few.product);
  };
  Index i = 0;
  const auto add_pairs_up_to = [&](const Index end) {
    PairSums few;
    // Not unrolled: memory is read in its own order, not in one that suits the compiler.
#pragma GCC unroll 1
    for (; i < end; i += 2 * lanes) {
      few.add(load_pair(src + i), load_pair(diff_dst + i), {pivot, pivot});
    }
    add(few.a() + few.b());
  };
  constexpr Index tile = terms_in_f32 * lanes;
  while (i + tile <= count) add_pairs_up_to(i + tile);
  add_pairs_up_to(i + (count - i) / (2 * lanes) * (2 * lanes));
  Sums last{broadcast(0), broadcast(0)};
  if (i + lanes <= count) {
    last = sum_first(lanes, src + i, diff_dst + i, pivot);
    i += lanes;
  }
  if (const int rest = static_cast<int>(count - i); rest > 0) {
    last = last + sum_first(rest, src + i, diff_dst + i, pivot);
  }
  add(last);
  store_doubles(diff_dst_sums, sum_diff_dst);
  store_doubles(product_sums, sum_product);
}

inline double sum_of_lanes(const double* sums) {
  double sum = 0;
  for (int i = 0; i < lanes; ++i) sum += sums[i];
  return sum;
}

template <class T>
void reduce_planes(const Task& task, const Part& part, const PartialScratch& scratch) {
  const Order& order = task.order;
  const T* const src = static_cast<const T*>(task.tensors.src) + part.offset;
  const T* const diff_dst = static_cast<const T*>(task.tensors.diff_dst) + part.offset;
  const float* const pivots = task.workspace.tables.pivot;
  // For each channel, the lanes of one sum and then of the other.
  constexpr Index per_channel = scratch_per_plane(lanes);
  const Index doubles = length(part.channels) * per_channel;
  std::memset(scratch.doubles, 0, static_cast<std::size_t>(doubles) * sizeof(double));

  const Range rows = rows_of(order, part.chunk);
  for (Index row = rows.begin; row < rows.end; ++row) {
    const Piece piece = piece_of(order, row);
    double* sums = scratch.doubles;
    for (Index c = part.channels.begin; c < part.channels.end; ++c, sums += per_channel) {
      const Index at = piece.begin + c * order.inner;
      add_piece(src + at, diff_dst + at, piece.count, broadcast(pivots[c]), sums, sums + lanes);
    }
  }

  double* const partial = task.workspace.partials + 2 * part.partial * order.channels;
  const double* sums = scratch.doubles;
  for (Index c = part.channels.begin; c < part.channels.end; ++c, sums += per_channel) {
    put(part, partial[c], sum_of_lanes(sums));
    put(part, partial[order.channels + c], sum_of_lanes(sums + lanes));
  }
}

template <class T>
void reduce(const Task& task, const Part& part, const PartialScratch& scratch) {
  if (task.order.columns) {
    reduce_columns<T>(task, part, scratch);
  } else {
    reduce_planes<T>(task, part, scratch);
  }
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
