#pragma once

// The results, element by element.

#include <cstdint>

#include "formulas.inl"
#include "kernels.hpp"
#include "pairs.hpp"
#include "simd.hpp"
#include "tables.inl"

namespace onedsl::native::ONEDSL_ISA {
namespace {

template <class Result, bool non_temporal>
class Writer {
 public:
  Writer(const Task& task, const Part& part)
      : task_(task), order_(task.order), part_(part), result_(task, part.offset) {}

  void write_columns() const {
    const Range rows = rows_of(order_, part_.chunk);
    const Index rest = rest_of(order_, part_.chunk);
    const bool whole_rows = length(part_.channels) == order_.channels;
    if (whole_rows && (non_temporal || four_vectors_hold_whole_positions())) {
      return write_span(rows.begin * order_.row, rows.end * order_.row + rest, 0);
    }
    const Index column = part_.channels.begin * order_.inner;
    const Index width = whole_rows ? order_.row : length(part_.channels) * order_.inner;
    Index row = rows.begin;
    if constexpr (non_temporal) {
      for (; row < rows.end; ++row) {
        const Index begin = row * order_.row + column;
        write_span(begin, begin + width, column);
      }
    } else {
      // Long rows are better read one by one, in memory's order.
      constexpr Index longest_row_bytes = 1024;
      if (order_.row * element_bytes <= longest_row_bytes) {
        for (; row + 4 <= rows.end; row += 4) write_rows<4>(row, column, width);
      }
      for (; row < rows.end; ++row) write_rows<1>(row, column, width);
      if (rest > 0) write_rows<1>(order_.rows, 0, rest);
    }
  }

  void write_planes() const {
    const Range rows = rows_of(order_, part_.chunk);
    for (Index row = rows.end; row-- > rows.begin;) {
      const Piece piece = piece_of(order_, row);
      if (part_.to_next > 0) {
        write_planes_of<true>(piece);
      } else {
        write_planes_of<false>(piece);
      }
    }
  }

 private:
  using Element = typename Result::Element;
  using Tables_ = ColumnTables<Element>;
  static constexpr auto element_bytes = static_cast<Index>(sizeof(Element));
  static constexpr Index vector_bytes = lanes * element_bytes;
  // Or a line's: each vector of a pair that begins a line is aligned.
  static constexpr Index pair_bytes = minimum(2 * vector_bytes, line_bytes);

  // `count` pairs of vectors of each of n rows; coefficients(i) are those of the pair that begins
  // at the i-th element. `asks` for what is to be read of these rows.
  template <int n = 1, bool asks = false, class Of>
  [[gnu::flatten]] void write_pairs(const Index count, const Index at,
                                    const Of& coefficients) const {
    // A copy: *this would be read again after every store.
    const Result result = result_;
    const Index stride = order_.row;
    const Index end = at + count * pair_lanes;
    for (Index i = at; i < end; i += pair_lanes) {
      const PairCoefficients k = coefficients(i - at);
      for (Index j = i; j < i + n * stride; j += stride) {
        if constexpr (asks) prefetch(result, j + elements_ahead<Element>, pair_lanes);
        result.write(j, k, WholePair<non_temporal>{});
        if constexpr (n == 1) break;
      }
    }
  }

  // `count` times two pairs of vectors: all coefficients stay in registers.
  [[gnu::flatten]] void write_by_turns(const Index count, const Index at,
                                       const PairCoefficients& first,
                                       const PairCoefficients& second) const {
    const Result result = result_;
    for (Index i = at; i < at + count * 2 * pair_lanes; i += 2 * pair_lanes) {
      prefetch(result, i + elements_ahead<Element>, 2 * pair_lanes);
      result.write(i, first, WholePair<non_temporal>{});
      result.write(i + pair_lanes, second, WholePair<non_temporal>{});
    }
  }

  // Elements from `at` on before one where stores of so many bytes are aligned: non-temporal ones
  // must be, and others are faster. The tensor's own type decides its alignment, so that there
  // always is one.
  Index unaligned_from(const Index at, const Index bytes) const {
    const auto address = reinterpret_cast<std::uintptr_t>(result_.begin() + at);
    return static_cast<Index>((0 - address) % static_cast<std::uintptr_t>(bytes)) / element_bytes;
  }

  // The coefficients then repeat every two pairs of vectors.
  bool four_vectors_hold_whole_positions() const {
    return 2 * pair_lanes % (order_.channels * order_.inner) == 0;
  }

  // Elements [begin, end), the first of them of the given column; the table is gone through
  // cyclically.
  void write_span(const Index begin, const Index end, Index column) const {
    const Index period = task_.workspace.tables.period;
    const auto coefficients = [&] { return Tables_(task_, column); };
    const auto pass_columns = [&](const Index count) {
      column += count;
      while (column >= period) column -= period;
    };
    Index at = begin;
    if (const Index n = minimum(unaligned_from(at, pair_bytes), end - at); n > 0) {
      result_.write(at, coefficients().at(0), FirstOfPair{static_cast<int>(n)});
      at += n;
      pass_columns(n);
    }
    if (four_vectors_hold_whole_positions()) {
      const PairCoefficients first = coefficients().at(0);
      pass_columns(pair_lanes);
      const PairCoefficients second = coefficients().at(0);
      pass_columns(pair_lanes);
      const Index count = (end - at) / (2 * pair_lanes);
      write_by_turns(count, at, first, second);
      at += count * 2 * pair_lanes;
    }
    while (at + pair_lanes <= end) {
      const Index up_to_period = (period - column - 1) / pair_lanes + 1;
      const Index count = minimum((end - at) / pair_lanes, up_to_period);
      write_pairs<1, true>(count, at, [tables = coefficients()](Index i) { return tables.at(i); });
      at += count * pair_lanes;
      pass_columns(count * pair_lanes);
    }
    if (at < end) result_.write(at, coefficients().at(0), FirstOfPair{static_cast<int>(end - at)});
  }

  // Columns of n rows, whose coefficients are then loaded once.
  template <int n>
  void write_rows(const Index row, const Index column, const Index width) const {
    const Index at = row * order_.row + column;
    const auto write_few = [&](const Index first, const Index count) {
      const PairCoefficients k = Tables_(task_, column + first).at(0);
      for (Index i = at + first; i < at + first + n * order_.row; i += order_.row) {
        result_.write(i, k, FirstOfPair{static_cast<int>(count)});
      }
    };
    const Index head = rows_begin_alike() ? minimum(unaligned_from(at, pair_bytes), width) : 0;
    if (head > 0) write_few(0, head);
    const Index pairs = (width - head) / pair_lanes;
    const Tables_ tables(task_, column + head);
    write_pairs<n, true>(pairs, at + head, [tables](Index i) { return tables.at(i); });
    const Index done = head + pairs * pair_lanes;
    if (done < width) write_few(done, width - done);
  }

  // In a line of memory: what is aligned in one row is aligned in all.
  bool rows_begin_alike() const { return order_.row * element_bytes % line_bytes == 0; }

  // Planes, or pieces of one, that follow each other in memory. Where a vector crosses from one
  // into the next, its lanes take the coefficients of both: a plane is at least a vector long.
  template <bool prefetch_next_panel>
  [[gnu::flatten]] void write_planes_of(const Piece& piece) const {
    Index at = piece.begin + part_.channels.begin * order_.inner;
    Index plane_end = at + piece.count;
    Coefficients k = channel_coefficients(task_, part_.channels.begin);
    // Other stores stay where they fall: aligned, they gained in misaligned memory alone.
    const Index n = non_temporal ? minimum(unaligned_from(at, vector_bytes), piece.count) : 0;
    if (n > 0) {
      result_.write(at, k, FirstOfVector{static_cast<int>(n)});
      at += n;
    }
    for (Index c = part_.channels.begin; c < part_.channels.end; ++c) {
      at = write_whole_vectors<prefetch_next_panel>(at, plane_end, k);
      const int left = static_cast<int>(plane_end - at);
      if (c + 1 < part_.channels.end) {
        const Coefficients next = channel_coefficients(task_, c + 1);
        if (left > 0) {
          result_.write(at, select_first(left, k, next), WholeVector<non_temporal>{});
          at += lanes;
        }
        k = next;
      } else if (left > 0) {
        result_.write(at, k, FirstOfVector{left});
      }
      plane_end += order_.inner;
    }
  }

  // As many as there are before `end`. Returns where they end.
  template <bool prefetch_next_panel>
  Index write_whole_vectors(const Index at, const Index end, const Coefficients& k) const {
    const Index vectors = (end - at) / lanes;
    const Index pairs = vectors / 2;
    const auto coefficients = [k](Index) { return PairCoefficients{k, k}; };
    if constexpr (prefetch_next_panel) {
      // By turns, for the processor has only so many requests to memory under way.
      constexpr Index turn = 16;
      for (Index done = 0; done < pairs; done += turn) {
        const Index count = minimum(pairs - done, turn);
        const Index i = at + done * pair_lanes;
        prefetch<Into::second_cache>(result_, i + part_.to_next, count * pair_lanes);
        write_pairs(count, i, coefficients);
      }
    } else {
      write_pairs(pairs, at, coefficients);
    }
    const Index done = at + vectors * lanes;
    if (vectors % 2 != 0) result_.write(done - lanes, k, WholeVector<non_temporal>{});
    return done;
  }

  const Task& task_;
  const SummationOrder& order_;
  const Part& part_;
  Result result_;
};

template <class Result, bool non_temporal>
void write_part(const Task& task, const Part& part) {
  const Writer<Result, non_temporal> writer(task, part);
  if (task.order.columns) {
    writer.write_columns();
  } else {
    writer.write_planes();
  }
}

template <class Result>
void write(const Task& task, const Part& part) {
  if (task.non_temporal) {
    write_part<Result, true>(task, part);
  } else {
    write_part<Result, false>(task, part);
  }
}

template <class T>
void write_gradient(const Task& task, const Part& part) {
  if (task.formula.statistics == Statistics::batch) {
    write<GradientResult<T, Statistics::batch>>(task, part);
  } else {
    write<GradientResult<T, Statistics::frozen>>(task, part);
  }
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
