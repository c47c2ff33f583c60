#pragma once

// diff_src, element by element.

#include <cstdint>

#include "kernels.hpp"
#include "pairs.hpp"
#include "simd.hpp"
#include "tables.inl"

namespace onedsl::native::ONEDSL_ISA {
namespace {

struct Coefficients {
  Vec mean;
  Vec scale;
  Vec shift;
  Vec slope;
};

struct PairCoefficients {
  Coefficients a;
  Coefficients b;
};

// The tables of columns, from one entry on.
template <class T>
struct ColumnTables {
  ColumnTable<T> mean;
  ColumnTable<T> scale;
  ColumnTable<T> shift;
  ColumnTable<T> slope;

  ColumnTables(const Task& task, const Index entry)
      : mean(task, task.workspace.tables.mean, entry),
        scale(task, task.workspace.tables.scale, entry),
        shift(task, task.workspace.tables.shift, entry),
        slope(task, task.workspace.tables.slope, entry) {}

  PairCoefficients at(const Index i) const {
    const VecPair m = mean.at(i);
    const VecPair r = scale.at(i);
    const VecPair h = shift.at(i);
    const VecPair s = slope.at(i);
    return {{m.a, r.a, h.a, s.a}, {m.b, r.b, h.b, s.b}};
  }
};

inline Coefficients channel_coefficients(const Task& task, const Index c) {
  const Tables& tables = task.workspace.tables;
  return {broadcast(tables.mean[c]), broadcast(tables.scale[c]), broadcast(tables.shift[c]),
          broadcast(tables.slope[c])};
}

inline Coefficients select_first(const int n, const Coefficients& a, const Coefficients& b) {
  return {select_first(n, a.mean, b.mean), select_first(n, a.scale, b.scale),
          select_first(n, a.shift, b.shift), select_first(n, a.slope, b.slope)};
}

// src - mean comes first: it costs no accuracy where the mean is large against the deviation.
inline Vec batch_gradient(const Coefficients& k, const Vec x, const Vec d) {
  return k.scale * subtract_product(d - k.shift, x - k.mean, k.slope);
}
inline Vec frozen_gradient(const Coefficients& k, const Vec d) { return k.scale * d; }

template <class T, Statistics statistics, bool streaming>
class Writer {
 public:
  Writer(const Task& task, const Part& part)
      : task_(task),
        order_(task.order),
        part_(part),
        src_(static_cast<const T*>(task.tensors.src) + part.offset),
        diff_dst_(static_cast<const T*>(task.tensors.diff_dst) + part.offset),
        diff_src_(static_cast<T*>(task.tensors.diff_src) + part.offset) {}

  void write_columns() const {
    const Range rows = rows_of(order_, part_.chunk);
    const Index rest = rest_of(order_, part_.chunk);
    const bool whole_rows = length(part_.channels) == order_.channels;
    if (whole_rows && (streaming || four_vectors_hold_whole_positions())) {
      return write_span(rows.begin * order_.row, rows.end * order_.row + rest, 0);
    }
    const Index column = part_.channels.begin * order_.inner;
    const Index width = whole_rows ? order_.row : length(part_.channels) * order_.inner;
    Index row = rows.begin;
    if constexpr (streaming) {
      for (; row < rows.end; ++row) {
        const Index begin = row * order_.row + column;
        write_span(begin, begin + width, column);
      }
    } else {
      // Long rows are better read one by one, in memory's order.
      constexpr Index longest_row_bytes = 1024;
      if (order_.row * static_cast<Index>(sizeof(T)) <= longest_row_bytes) {
        for (; row + 4 <= rows.end; row += 4) write_rows<4>(row, column, width);
      }
      for (; row < rows.end; ++row) write_rows<1>(row, column, width);
      if (rest > 0) write_rows<1>(order_.rows, 0, rest);
    }
  }

  void write_planes() const {
    const Range rows = rows_of(order_, part_.chunk);
    for (Index row = rows.end; row-- > rows.begin;) write_planes_of(piece_of(order_, row));
  }

 private:
  static constexpr bool uses_src = statistics == Statistics::batch;

  static Vec gradient(const Coefficients& k, const Vec x, const Vec d) {
    if constexpr (uses_src) {
      return batch_gradient(k, x, d);
    } else {
      return frozen_gradient(k, d);
    }
  }
  static VecPair gradient(const PairCoefficients& k, const VecPair& x, const VecPair& d) {
    return {gradient(k.a, x.a, d.a), gradient(k.b, x.b, d.b)};
  }

  static void write_pair(T* result, const T* x, const T* d, const PairCoefficients& k) {
    const VecPair pair = gradient(k, uses_src ? load_pair(x) : VecPair{}, load_pair(d));
    if constexpr (streaming) {
      stream_pair(result, pair);
    } else {
      store_pair(result, pair);
    }
  }

  // `count` pairs of vectors of each of n rows; coefficients(i) are those of the pair that begins
  // at the i-th element.
  template <int n = 1, class Of>
  void write_pairs(const Index count, const Index at, const Of& coefficients) const {
    // Copies: *this would be read again after every store.
    const T* const x = src_ + at;
    const T* const d = diff_dst_ + at;
    T* const result = diff_src_ + at;
    const Index stride = order_.row;
    for (Index i = 0; i < count * 2 * lanes; i += 2 * lanes) {
      const PairCoefficients k = coefficients(i);
      for (Index j = i; j < i + n * stride; j += stride) {
        write_pair(result + j, x + j, d + j, k);
        if constexpr (n == 1) break;
      }
    }
  }

  // `count` times two pairs of vectors: all coefficients stay in registers.
  void write_by_turns(Index count, const Index at, const PairCoefficients& first,
                      const PairCoefficients& second) const {
    const T* x = src_ + at;
    const T* d = diff_dst_ + at;
    T* result = diff_src_ + at;
    for (; count > 0; --count, x += 4 * lanes, d += 4 * lanes, result += 4 * lanes) {
      write_pair(result, x, d, first);
      write_pair(result + 2 * lanes, x + 2 * lanes, d + 2 * lanes, second);
    }
  }

  // Fewer than two vectors.
  void write_first(const int n, const Index at, const PairCoefficients& k) const {
    const VecPair x = uses_src ? load_pair_first(n, src_ + at) : VecPair{};
    store_pair_first(n, diff_src_ + at, gradient(k, x, load_pair_first(n, diff_dst_ + at)));
  }

  // At most one vector.
  void write_first(const int n, const Index at, const Coefficients& k) const {
    const Vec x = uses_src ? load_first(n, src_ + at) : Vec{};
    store_first(n, diff_src_ + at, gradient(k, x, load_first(n, diff_dst_ + at)));
  }

  // A whole vector.
  void write_vector(const Index at, const Coefficients& k) const {
    const Vec x = uses_src ? load(src_ + at) : Vec{};
    const Vec result = gradient(k, x, load(diff_dst_ + at));
    if constexpr (streaming) {
      stream(diff_src_ + at, result);
    } else {
      store(diff_src_ + at, result);
    }
  }

  // Elements from `at` on before one that a non-temporal store can begin with. The tensor's own
  // type decides its alignment, so that there always is one.
  Index unaligned_from(const Index at) const {
    if constexpr (!streaming) return 0;
    const auto address = reinterpret_cast<std::uintptr_t>(diff_src_ + at);
    return static_cast<Index>((0 - address) % (lanes * sizeof(T)) / sizeof(T));
  }

  // The coefficients then repeat every two pairs of vectors.
  bool four_vectors_hold_whole_positions() const {
    return 4 * lanes % (order_.channels * order_.inner) == 0;
  }

  // Elements [begin, end), the first of them of the given column; the table is gone through
  // cyclically.
  void write_span(const Index begin, const Index end, Index column) const {
    const Index period = task_.workspace.tables.period;
    const auto coefficients = [&] { return ColumnTables<T>(task_, column); };
    const auto pass_columns = [&](const Index count) {
      column += count;
      while (column >= period) column -= period;
    };
    Index at = begin;
    if (const Index n = minimum(unaligned_from(at), end - at); n > 0) {
      write_first(static_cast<int>(n), at, coefficients().at(0));
      at += n;
      pass_columns(n);
    }
    if (four_vectors_hold_whole_positions()) {
      const PairCoefficients first = coefficients().at(0);
      pass_columns(2 * lanes);
      const PairCoefficients second = coefficients().at(0);
      pass_columns(2 * lanes);
      const Index count = (end - at) / (4 * lanes);
      write_by_turns(count, at, first, second);
      at += count * 4 * lanes;
    }
    while (at + 2 * lanes <= end) {
      const Index up_to_period = (period - column - 1) / (2 * lanes) + 1;
      const Index count = minimum((end - at) / (2 * lanes), up_to_period);
      write_pairs(count, at, [tables = coefficients()](Index i) { return tables.at(i); });
      at += count * 2 * lanes;
      pass_columns(count * 2 * lanes);
    }
    if (at < end) write_first(static_cast<int>(end - at), at, coefficients().at(0));
  }

  // Columns of n rows, whose coefficients are then loaded once.
  template <int n>
  void write_rows(const Index row, const Index column, const Index width) const {
    const ColumnTables<T> tables(task_, column);
    const Index at = row * order_.row + column;
    const Index pairs = width / (2 * lanes);
    write_pairs<n>(pairs, at, [tables](Index i) { return tables.at(i); });
    const Index done = pairs * 2 * lanes;
    if (done == width) return;
    for (Index i = 0; i < n; ++i) {
      const Index last = at + i * order_.row + done;
      write_first(static_cast<int>(width - done), last, tables.at(done));
    }
  }

  // Planes, or pieces of one, that follow each other in memory. Where a vector crosses from one
  // into the next, its lanes take the coefficients of both: a plane is at least a vector long.
  void write_planes_of(const Piece& piece) const {
    Index at = piece.begin + part_.channels.begin * order_.inner;
    Index plane_end = at + piece.count;
    Coefficients k = channel_coefficients(task_, part_.channels.begin);
    if (const Index n = minimum(unaligned_from(at), piece.count); n > 0) {
      write_first(static_cast<int>(n), at, k);
      at += n;
    }
    for (Index c = part_.channels.begin; c < part_.channels.end; ++c) {
      at = write_whole_vectors(at, plane_end, k);
      const int left = static_cast<int>(plane_end - at);
      if (c + 1 < part_.channels.end) {
        const Coefficients next = channel_coefficients(task_, c + 1);
        if (left > 0) {
          write_vector(at, select_first(left, k, next));
          at += lanes;
        }
        k = next;
      } else if (left > 0) {
        write_first(left, at, k);
      }
      plane_end += order_.inner;
    }
  }

  // As many as there are before `end`. Returns where they end.
  Index write_whole_vectors(const Index at, const Index end, const Coefficients& k) const {
    const Index vectors = (end - at) / lanes;
    write_pairs(vectors / 2, at, [k](Index) { return PairCoefficients{k, k}; });
    const Index done = at + vectors * lanes;
    if (vectors % 2 != 0) write_vector(done - lanes, k);
    return done;
  }

  const Task& task_;
  const Order& order_;
  const Part& part_;
  const T* src_;
  const T* diff_dst_;
  T* diff_src_;
};

template <class T, Statistics statistics, bool streaming>
void write_part(const Task& task, const Part& part) {
  const Writer<T, statistics, streaming> writer(task, part);
  if (task.order.columns) {
    writer.write_columns();
  } else {
    writer.write_planes();
  }
}

template <class T, Statistics statistics>
void write_with(const Task& task, const Part& part) {
  if (task.streaming) {
    write_part<T, statistics, true>(task, part);
  } else {
    write_part<T, statistics, false>(task, part);
  }
}

template <class T>
void write(const Task& task, const Part& part) {
  if (task.formula.statistics == Statistics::batch) {
    write_with<T, Statistics::batch>(task, part);
  } else {
    write_with<T, Statistics::frozen>(task, part);
  }
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
