#include <array>
#include <type_traits>

#include "check.hpp"
#include "layouts.hpp"
#include "native/summation_order.hpp"
#include "native/places.hpp"
#include "tests.hpp"

namespace onedsl::test {
namespace {

using native::Index;
using native::SummationOrder;

// The order of summation is made of these alone. Whoever wants to tell order_of() of threads or of
// caches finds this in the way: results would no longer be the same bits for any number of threads.
static_assert(std::is_same_v<decltype(native::order_of), SummationOrder(const Geometry&, int)>);

void check_rows(const SummationOrder& order, const Geometry& geometry) {
  const Index block = geometry.outer * geometry.channels * geometry.inner;
  if (order.columns) {
    check(order.rows * order.row + order.rest == block, "rows of ", geometry);
    check(order.row == order.repeat * order.channels * order.inner, "a row of ", geometry);
    check(order.rest < order.row, "the rest of ", geometry);
    check(order.inner < order.lanes, "columns of ", geometry);
  } else {
    check(order.rows == order.outer * order.pieces && order.rest == 0, "rows of ", geometry);
    check(order.pieces == 1 || order.rows_together == 1, "pieces are summed singly: ", geometry);
    check((order.pieces - 1) * order.piece < order.inner, "no piece is empty: ", geometry);
    check(order.pieces * order.piece >= order.inner, "pieces cover a plane: ", geometry);
    // A vector may cross from one plane into the next, and not beyond it.
    check(order.inner >= order.lanes, "planes of ", geometry);
  }
}

void check_chunks(const SummationOrder& order, const Geometry& geometry) {
  check(order.chunks >= 1 && order.chunk_rows >= 1, "chunks of ", geometry);
  check((order.chunks - 1) * order.chunk_rows < order.rows, "no chunk is empty: ", geometry);
  check(order.chunks * order.chunk_rows >= order.rows, "chunks cover the rows: ", geometry);
  check(order.places == geometry.times(false), "places of ", geometry);
  Index next = 0;
  for (Index partial = 0; partial < order.partials; ++partial) {
    const native::Range chunks = chunks_of(order, partial);
    check(chunks.begin == next && chunks.end > chunks.begin, "a partial sum of ", geometry);
    next = chunks.end;
  }
  check(next == order.places * order.chunks, "partial sums of ", geometry);
}

}  // namespace

void test_order() {
  Random random(2);
  int columns = 0;
  int in_pieces = 0;
  int at_places = 0;
  int many_chunks = 0;
  for (int i = 0; i < 20000; ++i) {
    const Index most = Index{1} << random.between(4, 34);
    const std::optional<Geometry> whole =
        (random.chance(4) ? random_layout(random, most) : random_block(random, most)).geometry();
    if (!whole) continue;
    const Geometry geometry = native::without_kept_loops(*whole);
    for (const int lanes : {4, 8, 16}) {
      const SummationOrder order = native::order_of(geometry, lanes);
      check_rows(order, geometry);
      check_chunks(order, geometry);
      columns += order.columns ? 1 : 0;
      in_pieces += order.pieces > 1 ? 1 : 0;
      at_places += order.places > 1 ? 1 : 0;
      many_chunks += order.chunks > 1 ? 1 : 0;
    }
  }
  for (const int seen : {columns, in_pieces, at_places, many_chunks}) {
    check(seen > 100, "the random geometries say too little: ", columns, " in columns, ", in_pieces,
          " in pieces, ", at_places, " at several places, ", many_chunks, " in chunks");
  }
}

}  // namespace onedsl::test
