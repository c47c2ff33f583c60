#pragma once

// Ranges of rows and segments, and the coefficient tables as vectors.

#include <cstdint>
#include <cstring>

#include "kernels.hpp"
#include "vector.hpp"
#include "vector_pair.hpp"

namespace onedsl::native::ONEDSL_ISA {
namespace {

constexpr Index minimum(const Index a, const Index b) { return a < b ? a : b; }
constexpr Index length(const Range& range) { return range.end - range.begin; }

// Return the elements after the last whole row, if a tile of columns has that row.
inline Index rest_of(const SummationOrder& order, const Tile& tile) {
  return tile.rows.end == order.rows ? order.rest : 0;
}

// A row of planes: one segment of each plane of a position.
struct Segment {
  Index begin;  // in the plane of channel 0
  Index count;
};

inline Segment segment_of(const SummationOrder& order, const Index row) {
  const Index within = row % order.segments * order.segment;
  return {row / order.segments * order.channels * order.inner + within,
          minimum(order.segment, order.inner - within)};
}

// Return the index of an entry in a table.
inline Index table_index(const Tables& tables, const Index entry) {
  return tables.even_first ? entry / 2 + entry % 2 * (tables.entries / 2) : entry;
}

// Calls set(index, c) for each table index of each channel c.
template <class Set>
inline void for_table_indices(const Task& task, const Range& channels, const Set& set) {
  const SummationOrder& order = task.order;
  const Index inner = order.columns ? order.inner : 1;
  const Tables& tables = task.workspace.tables;
  for (Index c = channels.begin; c < channels.end; ++c) {
    for (Index i = c * inner; i < (c + 1) * inner; ++i) {
      for (Index entry = i; entry < tables.entries; entry += order.channels * inner) {
        set(table_index(tables, entry), c);
      }
    }
  }
}

// Return a value with the bits outside of `kept` cleared, and those of `set` set.
inline float change_bits(const float value, const std::uint32_t kept, const std::uint32_t set = 0) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  bits = (bits & kept) | set;
  float changed = 0;
  std::memcpy(&changed, &bits, sizeof changed);
  return changed;
}

// Return a coefficient in f32. A NaN becomes quiet, and its lower 16 bits zero (see
// round_bf16_bits()).
inline float coefficient(const double value) {
  const auto narrow = static_cast<float>(value);
  return __builtin_isnan(narrow) ? change_bits(narrow, 0xffff0000U, 0x00400000U) : narrow;
}

// The coefficients of the elements of a vector. The compiler drops the loads of unused ones.
struct Coefficients {
  Vec pivot;
  Vec mean;
  Vec scale;
  Vec beta;
  Vec shift;
  Vec slope;
};

struct PairCoefficients {
  Coefficients a;
  Coefficients b;
};

inline Vec pivot_of(const Coefficients& k) { return k.pivot; }
inline VecPair pivot_of(const PairCoefficients& k) { return {k.a.pivot, k.b.pivot}; }

inline Coefficients broadcast_coefficients(const Tables& tables, const Index c) {
  return {broadcast(tables.pivot[c]), broadcast(tables.mean[c]),  broadcast(tables.scale[c]),
          broadcast(tables.beta[c]),  broadcast(tables.shift[c]), broadcast(tables.slope[c])};
}

inline Coefficients select_first(const int n, const Coefficients& a, const Coefficients& b) {
  return {select_first(n, a.pivot, b.pivot), select_first(n, a.mean, b.mean),
          select_first(n, a.scale, b.scale), select_first(n, a.beta, b.beta),
          select_first(n, a.shift, b.shift), select_first(n, a.slope, b.slope)};
}

// The tables of columns, from one entry on.
template <class T>
class ColumnTables {
 public:
  ColumnTables(const Task& task, const Index entry)
      : tables_(task.workspace.tables),
        a_(table_index(tables_, entry)),
        b_(splits_even_odd<T> ? table_index(tables_, entry + 1) : a_ + lanes) {}

  // Return the entries of the pair of vectors that begins at column i, which is even.
  PairCoefficients at(const Index i) const {
    const Index step = splits_even_odd<T> ? i / 2 : i;
    return {load_entries(a_ + step), load_entries(b_ + step)};
  }

 private:
  Coefficients load_entries(const Index i) const {
    return {load(tables_.pivot + i), load(tables_.mean + i),  load(tables_.scale + i),
            load(tables_.beta + i),  load(tables_.shift + i), load(tables_.slope + i)};
  }

  Tables tables_;
  Index a_;
  Index b_;
};

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
