#pragma once

// Where rows, pieces and the entries of tables lie.

#include "kernels.hpp"
#include "pairs.hpp"
#include "simd.hpp"

namespace onedsl::native::ONEDSL_ISA {
namespace {

constexpr Index minimum(const Index a, const Index b) { return a < b ? a : b; }
constexpr Index length(const Range& range) { return range.end - range.begin; }

// The rows of a chunk. The last chunk may have fewer, and `rest` as well.
inline Range rows_of(const Order& order, const Index chunk) {
  const Index first = chunk * order.chunk_rows;
  return {minimum(first, order.rows), minimum(first + order.chunk_rows, order.rows)};
}
inline Index rest_of(const Order& order, const Index chunk) {
  return chunk + 1 == order.chunks ? order.rest : 0;
}

// Where a row begins in each of its planes, and how many elements of them it has.
struct Piece {
  Index begin;  // of channel 0
  Index count;
};

inline Piece piece_of(const Order& order, const Index row) {
  const Index within = row % order.pieces * order.piece;
  return {row / order.pieces * order.channels * order.inner + within,
          minimum(order.piece, order.inner - within)};
}

// Where a table keeps an entry. Those of columns are in the order in which a VecPair is loaded,
// from any column on, which puts all even entries before all odd ones if it splits them.
template <class T>
inline Index place_in_table(const Task& task, const Index entry) {
  if constexpr (!splits_even_odd<T>) return entry;
  if (!task.order.columns) return entry;
  return entry / 2 + entry % 2 * (task.workspace.tables.entries / 2);
}

// Calls set(place) for each place in a table that belongs to channel c.
template <class T, class Set>
inline void for_places_in_table(const Task& task, const Index c, const Set& set) {
  const Order& order = task.order;
  if (!order.columns) return set(c);
  const Index position = order.channels * order.inner;
  for (Index k = 0; k < order.repeat; ++k) {
    for (Index i = 0; i < order.inner; ++i) {
      Index entry = k * position + c * order.inner + i;
      for (; entry < task.workspace.tables.entries; entry += order.row) {
        set(place_in_table<T>(task, entry));
      }
    }
  }
}

// A table of columns, from one entry on.
template <class T>
struct ColumnTable {
  const float* a;
  const float* b;

  ColumnTable(const Task& task, const float* table, const Index entry)
      : a(table + place_in_table<T>(task, entry)),
        b(splits_even_odd<T> ? table + place_in_table<T>(task, entry + 1) : a + lanes) {}

  // For the pair of vectors that begins at the i-th of the columns: i is even.
  VecPair at(const Index i) const {
    const Index step = splits_even_odd<T> ? i / 2 : i;
    return {load(a + step), load(b + step)};
  }
};

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
