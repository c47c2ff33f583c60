#pragma once

#include <cstdint>

// Units of work
//
// A tensor is viewed as (outer, channels, inner), slowest axis first (core/geometry.hpp). One index
// of outer is a position: channels * inner neighboring elements. There are two layouts:
//
//   columns (as NXC): inner is shorter than a vector     planes (as NCX): inner is a vector or more
//
//              block 0    block 1                                   block 0     block 1
//             c0  c1  c2 |c3  c4  c5                              c0    c1   | c2    c3
//           +------------+------------+                         +-----+-----+-----+-----+
//     row 0 | .   .   .  | .   .   .  |                   row 0 |plane|plane|plane|plane|
//     row 1 | .   .   .  | .   .   .  | chunk 0           row 1 |     |     |     |     | chunk 0
//           +------------+------------+                         +-----+-----+-----+-----+
//     row 2 | .   .   .  | .   .   .  |                   row 2 |     |     |     |     |
//     row 3 | .   .   .  | .   .   .  | chunk 1           row 3 |     |     |     |     | chunk 1
//           +------------+------------+                         +-----+-----+-----+-----+
//
//   row          neighboring elements. Columns: `repeat` positions, so that column j belongs to
//                channel j / inner % channels; the elements after the last whole row are `rest`.
//                Planes: one position, or one segment of every plane of a position.
//   segment      part of a plane, where planes are few and large; else the whole plane
//   chunk        consecutive rows that are summed one after the other
//   block        neighboring channels that a thread processes together
//   tile         one chunk of one block: what one call of a kernel processes; threads share tiles
//   panel        neighboring blocks, which are written before the next panel is summed
namespace onedsl::native {

using Index = std::int64_t;

// [begin, end)
struct Range {
  Index begin = 0;
  Index end = 0;

  // Always inlined, because kernels of all instruction sets compile it.
  [[gnu::always_inline]] constexpr Index length() const noexcept { return end - begin; }
};

// The number of terms of a lane that are summed in f32 before they are added to a sum in f64. Terms
// are rows of columns, or pairs of vectors of a plane.
constexpr Index terms_in_f32 = 8;

// Columns: the number of rows, a quarter of the chunk apart, that are read at the same time: memory
// serves several streams faster than one, and the sums in cache are loaded and stored once for all
// of them.
constexpr Index streams = 4;

// The order of every sum: which elements are added to which, and when.
//
// The geometry and the lanes of a vector decide it, and nothing else: neither the number of threads
// nor the caches, which are the business of Schedule. So results have the same bits for any number
// of threads. Two rules ensure it:
// - The kernels that sum choose their branches by the SummationOrder and the chunk alone, never by
//   the block (see visit_rows() in reduce_columns.inl).
// - These members, terms_in_f32 and streams are the only sizes that decide where a sum is rounded.
struct SummationOrder {
  int lanes = 0;
  Index outer = 0;
  Index channels = 0;
  Index inner = 0;

  bool columns = false;
  Index repeat = 1;
  Index row = 0;   // elements
  Index rest = 0;  // elements
  Index segments = 1;
  Index segment = 0;  // elements; the last segment of a plane may have fewer
  Index rows = 0;
  bool rows_in_registers = false;  // columns: see ColumnSums::add_rows_in_registers()
  Index rows_together = 1;         // planes: see add_segments()

  Index chunk_rows = 0;
  Index chunks = 0;
};

}  // namespace onedsl::native
