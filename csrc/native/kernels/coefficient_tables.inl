#pragma once

// Ranges of rows and segments, and the coefficient tables as vectors.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels.hpp"
#include "vector.hpp"
#include "vector_pair.hpp"

namespace onedsl::native::ONEDSL_ISA {
namespace {

constexpr Index minimum(const Index a, const Index b) { return a < b ? a : b; }

// Return the elements after the last whole row, if a tile of columns has that row.
inline Index rest_of(const SummationOrder& order, const Tile& tile) {
  return tile.rows.end == order.rows ? order.rest : 0;
}

// A row of planes: one segment of each plane of a position.
struct Segment {
  Index position;
  Index begin;  // in a plane
  Index count;
};

inline Segment segment_of(const SummationOrder& order, const Index row) {
  const Index begin = row % order.segments * order.segment;
  return {row / order.segments, begin, minimum(order.segment, order.inner - begin)};
}

// Return the index of an entry in a table.
inline Index table_index(const Tables& tables, const Index entry) {
  return tables.even_first ? entry / 2 + entry % 2 * (tables.entries / 2) : entry;
}

inline Index length(const Whole<1>&) { return lanes; }
inline Index length(const First<1>& access) { return access.n; }

// Calls process(c, access) for each vector of channels from c on.
template <class Process>
inline void for_vectors(const Range& channels, const Process& process) {
  Index c = channels.begin;
  for (; c + lanes <= channels.end; c += lanes) process(c, Whole<1>{});
  if (c < channels.end) process(c, First<1>{static_cast<int>(channels.end - c)});
}

struct TableValues {
  float* table;
  Vec values;
};

// The entries of channels in the tables. Most are one vector: other entries are set and read by
// functions that are not inlined, because the loops over channels would get slower.
class ChannelEntries {
 public:
  explicit ChannelEntries(const KernelArgs& args)
      : tables_(args.tables),
        inner_(args.order.columns ? args.order.inner : 1),
        row_(args.order.channels * inner_),
        odd_(tables_.even_first ? tables_.entries / 2 : 0) {}

  // Sets all entries of a vector of channels in some tables.
  template <class Access, class... Values>
  void set(const Index c, const Access& access, const Values&... values) const {
    const bool repeated = inner_ > 1 || c + row_ < tables_.entries;
    if (repeated || length(access) < lanes) {
      (set_each(c, length(access), values), ...);
    } else {
      (set_vector(c, values), ...);
    }
  }

  // Return the values of a vector of channels in a table.
  template <class Access>
  Vec get(const float* const table, const Index c, const Access& access) const {
    if (inner_ > 1 || length(access) < lanes) return get_each(c, length(access), table);
    if (odd_ == 0) return load(table + c);
    Vec split;
    auto* const bytes = reinterpret_cast<char*>(&split);
    std::memcpy(bytes, table + index_of(c), half);
    std::memcpy(bytes + half, table + index_of(c + 1), half);
    return join_even_odd(split);
  }

 private:
  static constexpr std::size_t half = sizeof(Vec) / 2;

  void set_vector(const Index entry, const TableValues& each) const {
    if (odd_ == 0) return store(each.table + entry, each.values);
    const Vec split = split_even_odd(each.values);
    const auto* const bytes = reinterpret_cast<const char*>(&split);
    std::memcpy(each.table + index_of(entry), bytes, half);
    std::memcpy(each.table + index_of(entry + 1), bytes + half, half);
  }

  [[gnu::noinline]] void set_each(const Index c, const Index count, const TableValues& each) const {
    Index first = c * inner_;
    // If these are all channels, each vector overwrites what the one before has too much.
    if (inner_ == 1 && count == row_ && (odd_ == 0 || row_ % 2 == 0)) {
      for (; first + lanes <= tables_.entries; first += row_) set_vector(first, each);
    }
    float values[lanes];
    store(values, each.values);
    for (; first < tables_.entries; first += row_) {
      const Index end = minimum(first + count * inner_, tables_.entries);
      if (inner_ == 1 && end - first == lanes) {
        set_vector(first, each);
        continue;
      }
      for (Index i = 0, entry = first; entry < end; ++i) {
        for (const Index next = minimum(entry + inner_, end); entry < next; ++entry) {
          each.table[index_of(entry)] = values[i];
        }
      }
    }
  }

  [[gnu::noinline]] Vec get_each(const Index c, const Index count, const float* const table) const {
    float values[lanes] = {};
    for (Index i = 0; i < count; ++i) values[i] = table[index_of((c + i) * inner_)];
    return load(values);
  }

  Index index_of(const Index entry) const {
    return odd_ > 0 ? (entry >> 1) + ((entry & 1) != 0 ? odd_ : 0) : entry;
  }

  const Tables& tables_;
  Index inner_;
  Index row_;
  Index odd_;  // the index of the first odd entry, or 0 if the entries are in order
};

// Return values with the bits outside of `kept` cleared.
inline Vec keep_bits(const Vec v, const std::uint32_t kept) {
  return reinterpret<Vec>(reinterpret<Words>(v) & kept);
}
inline Doubles keep_bits(const Doubles v, const std::uint64_t kept) {
  return reinterpret<Doubles>(reinterpret<DoubleWords>(v) & kept);
}

// Return coefficients. A NaN becomes quiet, and its lower 16 bits zero (see round_bf16_bits()).
inline Vec coefficient(const Vec v) {
  const Words quiet = (reinterpret<Words>(v) & 0xffff0000U) | 0x00400000U;
  return v == v ? v : reinterpret<Vec>(quiet);
}
inline Vec coefficient(const DoubleVec& v) { return coefficient(narrow(v)); }

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
  ColumnTables(const KernelArgs& args, const Index entry)
      : tables_(args.tables),
        a_(table_index(tables_, entry)),
        b_(splits_even_odd<T> ? table_index(tables_, entry + 1) : a_ + lanes) {}

  // Return the tables from a later entry on, which is an even number of columns further.
  ColumnTables after(const Index columns) const {
    ColumnTables tables = *this;
    const Index step = splits_even_odd<T> ? columns / 2 : columns;
    tables.a_ += step;
    tables.b_ += step;
    return tables;
  }

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
