#pragma once

#include <cstdint>

namespace onedsl {
struct Geometry;
}

namespace onedsl::native {

using Index = std::int64_t;

// [begin, end)
struct Range {
  Index begin = 0;
  Index end = 0;
};

// The order of every sum: which elements are added to which, one after the other.
//
// It is decided here and nowhere else, by the geometry and the lanes of a vector. The number of
// threads and the caches have no part in it: order_of() is not told them. What depends on them, the
// Schedule, only says who computes what and when. So the results are the same bits for any number
// of threads, as long as a kernel that sums chooses its branches by an SummationOrder alone, and
// never by the block of channels that it was given: see visit_rows() in reduce_columns.inl.
//
// A tensor is seen as rows, one after the other in memory, in one of two ways:
//   columns: `inner` is shorter than a vector (1 in NXC memory). A row holds `repeat` positions of
//            the outer axis, each of channels * inner elements, and column j belongs to channel
//            j / inner % channels. What remains, shorter than a row, is `rest` elements.
//   planes:  a row holds one position of the outer axis, or, where planes are few and large, one of
//            its `pieces`: `piece` elements of every plane (the last piece may be shorter).
//
// Rows are summed in chunks. Where the whole block is summed over several `places`, every place has
// its own chunks. The sums of some neighbouring chunks make one partial sum (chunks_of), and the
// partial sums are added up in their own order.
struct SummationOrder {
  int lanes = 0;
  Index outer = 0;
  Index channels = 0;
  Index inner = 0;
  Index places = 0;

  bool columns = false;
  Index repeat = 1;
  Index row = 0;   // elements
  Index rest = 0;  // elements
  Index pieces = 1;
  Index piece = 0;  // elements
  Index rows = 0;
  bool rows_in_registers = false;  // columns: see ColumnSums::add_tile()
  Index rows_together = 1;         // planes: see add_pieces()

  Index chunk_rows = 0;
  Index chunks = 0;  // of one place
  Index partials = 0;
};

// For a geometry whose loops are all summed over, and which has elements.
SummationOrder order_of(const Geometry& geometry, int lanes);

// The chunks of a partial sum, counted through all places.
Range chunks_of(const SummationOrder& order, Index partial);

}  // namespace onedsl::native
