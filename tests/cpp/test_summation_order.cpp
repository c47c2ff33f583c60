#include <array>
#include <type_traits>

#include "check.hpp"
#include "layouts.hpp"
#include "native/loop_offsets.hpp"
#include "native/summation_order.hpp"
#include "tests.hpp"

namespace onedsl::test {
namespace {

using native::Index;
using native::SummationOrder;

// The summation order depends only on the geometry and the lanes of a vector. If it depended on
// threads or caches, the bits of results would depend on the number of threads.
static_assert(std::is_same_v<decltype(native::order_of), SummationOrder(const Geometry&, int)>);

void check_rows(const SummationOrder& order, const Geometry& geometry) {
  const Index block = geometry.outer * geometry.channels * geometry.inner;
  if (order.columns) {
    check(order.rows * order.row + order.rest == block, "rows of ", geometry);
    check(order.row == order.repeat * order.channels * order.inner, "a row of ", geometry);
    check(order.rest < order.row, "the rest of ", geometry);
    check(order.inner < order.lanes, "columns of ", geometry);
  } else {
    check(order.rows == order.outer * order.segments && order.rest == 0, "rows of ", geometry);
    check(order.segments == 1 || order.rows_together == 1,
          "segments are summed separately: ", geometry);
    check((order.segments - 1) * order.segment < order.inner, "no segment is empty: ", geometry);
    check(order.segments * order.segment >= order.inner, "segments cover a plane: ", geometry);
    // A vector may extend into the next plane, but not beyond it.
    check(order.inner >= order.lanes, "planes of ", geometry);
  }
}

void check_chunks(const SummationOrder& order, const Geometry& geometry) {
  check(order.chunks >= 1 && order.chunk_rows >= 1, "chunks of ", geometry);
  check((order.chunks - 1) * order.chunk_rows < order.rows, "no chunk is empty: ", geometry);
  check(order.chunks * order.chunk_rows >= order.rows, "chunks cover the rows: ", geometry);
  check(order.repetitions == geometry.loop_iterations(false), "repetitions of ", geometry);
  Index next = 0;
  for (Index partial = 0; partial < order.partials; ++partial) {
    const native::Range chunks = chunks_of(order, partial);
    check(chunks.begin == next && chunks.end > chunks.begin, "a partial sum of ", geometry);
    next = chunks.end;
  }
  check(next == order.repetitions * order.chunks, "partial sums of ", geometry);
}

}  // namespace

void test_summation_order() {
  Random random(2);
  int columns = 0;
  int in_segments = 0;
  int with_repetitions = 0;
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
      in_segments += order.segments > 1 ? 1 : 0;
      with_repetitions += order.repetitions > 1 ? 1 : 0;
      many_chunks += order.chunks > 1 ? 1 : 0;
    }
  }
  for (const int seen : {columns, in_segments, with_repetitions, many_chunks}) {
    check(seen > 100, "the random geometries cover too little: ", columns, " in columns, ",
          in_segments, " in segments, ", with_repetitions, " with repetitions, ", many_chunks,
          " in chunks");
  }
}

}  // namespace onedsl::test
