#pragma once

// The results, element by element.

#include <cstdint>

#include "coefficient_tables.inl"
#include "formulas.inl"
#include "kernels.hpp"
#include "vector.hpp"
#include "vector_pair.hpp"

namespace onedsl::native::ONEDSL_ISA {
namespace {

template <class Result>
class Writer {
 public:
  Writer(const KernelArgs& args, const Tile& tile, const Result& result)
      : args_(args), order_(args.order), tile_(tile), result_(result) {}

  void write_columns() const {
    const Range& rows = tile_.rows;
    const Index width = tile_.channels.length() * order_.inner;
    const Index rest = rest_of(order_, tile_) / (order_.channels * order_.inner);
    const Index positions = rows.length() * order_.repeat + rest;
    const bool neighboring =
        args_.neighboring_positions && tile_.channels.length() == order_.channels;
    const Index together = neighboring ? positions : 1;
    Result result = moved(result_, rows.begin * order_.repeat, tile_.channels.begin);
    if (!neighboring && tile_.channels.begin == 0) {
      if (width == 2 * pair_lanes && write_positions<2>(result, positions)) return;
      if (width == 4 * pair_lanes && write_positions<4>(result, positions)) return;
    }
    for (Index n = 0; n < positions; n += together, result.move(together, 0)) {
      write_span(result, together * width, tile_.channels.begin * order_.inner);
    }
  }

  void write_planes() const {
    const Range& rows = tile_.rows;
    const Range& channels = tile_.channels;
    const Index together = args_.neighboring_channels ? channels.length() : 1;
    for (Index row = rows.end; row-- > rows.begin;) {
      const Segment segment = segment_of(order_, row);
      for (Index c = channels.begin; c < channels.end; c += together) {
        write_segments(segment, {c, minimum(c + together, channels.end)});
      }
    }
  }

 private:
  using Element = typename Result::Element;
  using Tables_ = ColumnTables<Element>;
  static constexpr auto element_bytes = static_cast<Index>(sizeof(Element));
  static constexpr Index vector_bytes = lanes * element_bytes;
  // At most a cache line: each vector of a pair that begins a line is aligned.
  static constexpr Index pair_bytes = minimum(2 * vector_bytes, cache_line);

  // Writes `count` pairs of vectors. The tables are those from the column of element `at` on.
  [[gnu::flatten]] static void write_pairs(const Result& all, const Index count, const Index at,
                                           const Tables_ tables) {
    // A copy in registers: members would be loaded again after every store.
    const Result result = all;
    for (Index i = at; i < at + count * pair_lanes; i += pair_lanes) {
      prefetch_ahead(result, i, pair_lanes);
      result.write(i, tables.at(i - at), Whole<2>{});
    }
  }

  // Writes `count` times n pairs of vectors, all of whose coefficients stay in registers. The first
  // ones are at element `at`, and the next ones so many elements and positions further.
  template <int n>
  [[gnu::flatten]] static void write_repeatedly(const Result& all, const Index count, Index at,
                                                const Index elements, const Index positions,
                                                const PairCoefficients (&coefficients)[n]) {
    // Copies in registers, as in write_pairs().
    Result result = all;
    PairCoefficients k[n];
    for (int pair = 0; pair < n; ++pair) k[pair] = coefficients[pair];
    for (Index i = 0; i < count; ++i, at += elements, result.move(positions, 0)) {
#pragma GCC unroll 4
      for (int pair = 0; pair < n; ++pair) {
        prefetch_ahead(result, at + pair * pair_lanes, pair_lanes);
        result.write(at + pair * pair_lanes, k[pair], Whole<2>{});
      }
    }
  }

  // Return the number of elements from `at` to the next one whose address is a multiple of `bytes`.
  // Non-temporal stores must be aligned, and ordinary ones are faster. Tensors are aligned to
  // their element type, so that there is such an element.
  static Index unaligned_from(const Result& result, const Index at, const Index bytes) {
    const auto address = reinterpret_cast<std::uintptr_t>(result.begin() + at);
    return static_cast<Index>((0 - address) % static_cast<std::uintptr_t>(bytes)) / element_bytes;
  }

  // Return whether the coefficients repeat every n pairs of vectors.
  bool repeats_every(const Index n) const {
    return n * pair_lanes % (order_.channels * order_.inner) == 0;
  }

  // Writes positions of n pairs of vectors, which are no neighbors in memory, from the first column
  // on. Returns false if non-temporal stores would not be aligned.
  template <int n>
  bool write_positions(const Result& result, const Index positions) const {
    const bool aligned = unaligned_from(result, 0, pair_bytes) == 0 &&
                         result.pitch() * element_bytes % pair_bytes == 0;
    if (args_.non_temporal && !aligned) return false;
    const Tables_ tables(args_, 0);
    PairCoefficients k[n];
    for (int pair = 0; pair < n; ++pair) k[pair] = tables.at(pair * pair_lanes);
    write_repeatedly(result, positions, 0, 0, 1, k);
    return true;
  }

  // Return the column in the tables, `count` elements after another one.
  Index column_after(const Index column, const Index count) const {
    const Index period = args_.tables.period;
    Index after = column + count;
    while (after >= period) after -= period;
    return after;
  }

  // Writes the first `end` elements, which are neighbors in memory. The first one is in the given
  // column.
  void write_span(const Result& result, const Index end, Index column) const {
    const Index period = args_.tables.period;
    const auto tables = [&] { return Tables_(args_, column); };
    Index at = 0;
    if (const Index n = minimum(unaligned_from(result, at, pair_bytes), end); n > 0) {
      result.write(at, tables().at(0), First<2>{static_cast<int>(n)});
      at += n;
      column = column_after(column, n);
    }
    const auto write_in_registers = [&](auto& k) {
      constexpr Index n = sizeof k / sizeof *k;
      for (PairCoefficients& pair : k) {
        pair = tables().at(0);
        column = column_after(column, pair_lanes);
      }
      const Index count = (end - at) / (n * pair_lanes);
      write_repeatedly(result, count, at, n * pair_lanes, 0, k);
      at += count * n * pair_lanes;
    };
    if (repeats_every(2)) {
      PairCoefficients k[2];
      write_in_registers(k);
    } else if (repeats_every(4)) {
      PairCoefficients k[4];
      write_in_registers(k);
    }
    while (at + pair_lanes <= end) {
      const Index up_to_period = (period - column - 1) / pair_lanes + 1;
      const Index count = minimum((end - at) / pair_lanes, up_to_period);
      write_pairs(result, count, at, tables());
      at += count * pair_lanes;
      column = column_after(column, count * pair_lanes);
    }
    if (at < end) result.write(at, tables().at(0), First<2>{static_cast<int>(end - at)});
  }

  // Writes a segment of each of some planes. Several are whole planes and neighbors in memory: a
  // vector that crosses from one into the next takes its coefficients from both.
  [[gnu::flatten]] void write_segments(const Segment& segment, const Range& some) const {
    // Copies in registers, as in write_pairs(): small planes are bound by such loads.
    const Result result = moved(result_, segment.position, some.begin);
    const Tables tables = args_.tables;
    const Range channels = some;
    const Index inner = order_.inner;
    const Index to_next_panel = tile_.to_next_panel;
    Index at = segment.begin;
    Index end = at + segment.count;
    Coefficients k = broadcast_coefficients(tables, channels.begin);
    // Ordinary stores gain from alignment only where all tensors are misaligned.
    const Index n =
        args_.non_temporal ? minimum(unaligned_from(result, at, vector_bytes), segment.count) : 0;
    if (n > 0) {
      result.write(at, k, First<1>{static_cast<int>(n)});
      at += n;
    }
    for (Index c = channels.begin; c < channels.end; ++c) {
      at = write_whole_vectors(result, at, end, to_next_panel, k);
      const int left = static_cast<int>(end - at);
      if (c + 1 < channels.end) {
        const Coefficients next = broadcast_coefficients(tables, c + 1);
        if (left > 0) {
          result.write(at, select_first(left, k, next), Whole<1>{});
          at += lanes;
        }
        k = next;
      } else if (left > 0) {
        result.write(at, k, First<1>{left});
      }
      end += inner;
    }
  }

  // Writes as many vectors as fit before `end`, and returns where the last one ends.
  static Index write_whole_vectors(const Result& result, Index at, const Index end,
                                   const Index to_next_panel, const Coefficients& k) {
    // Prefetches 16 pairs at a time, because a CPU can have only some ten requests to memory
    // pending.
    constexpr Index prefetched = 16 * pair_lanes;
    const PairCoefficients both{k, k};
    while (end - at >= pair_lanes) {
      Index stop = end;
      if (to_next_panel > 0) {
        stop = minimum(at + prefetched, end);
        prefetch(result, at + to_next_panel, stop - at);
      }
      for (; stop - at >= pair_lanes; at += pair_lanes) result.write(at, both, Whole<2>{});
    }
    if (end - at >= lanes) {
      result.write(at, k, Whole<1>{});
      at += lanes;
    }
    return at;
  }

  const KernelArgs& args_;
  const SummationOrder& order_;
  const Tile& tile_;
  Result result_;
};

template <class Result>
void write(const KernelArgs& args, const Tile& tile, const Result& result) {
  const Writer<Result> writer(args, tile, result);
  if (args.order.columns) {
    writer.write_columns();
  } else {
    writer.write_planes();
  }
}

template <class Result>
void write(const KernelArgs& args, const Tile& tile) {
  write(args, tile, Result(args));
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
