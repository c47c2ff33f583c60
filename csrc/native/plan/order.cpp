#include "order.hpp"

#include <algorithm>

#include "int_math.hpp"

namespace onedsl::native {
namespace {

// Columns. The sums of a row of this many elements stay in the first two caches.
constexpr Index longest_row = 2048;
static_assert(2 * max_joined_position == longest_row);
// Short positions are joined to rows of 8 vectors, whose sums fit in the registers.
constexpr Index vectors_in_registers = 8;
// With fewer joined rows, the rest would be a large part of the tensor.
constexpr Index fewest_joined_rows = 8;
// A chunk has a fixed cost of some tens of rows. So a small tensor has few chunks, of this many
// rows, and a large one has more and longer chunks.
constexpr Index rows_in_short_chunk = 128;
constexpr Index max_short_chunks = 16;
constexpr Index rows_in_long_chunk = 512;
// A chunk of rows of several positions cannot be divided between threads by channels (see
// schedule.hpp). There are more of these.
constexpr Index rows_in_medium_chunk = 256;
constexpr Index max_medium_chunks = 32;
constexpr Index max_partial_sums = 32768;
constexpr Index max_chunks = 256;

// Planes. If there are fewer channels than many threads need, a channel has several chunks, each of
// at least this many elements.
constexpr Index elements_in_chunk = 16384;
constexpr Index max_chunks_of_planes = 256;
// The least number of rows of a chunk. If there are fewer positions, planes are cut into segments,
// whose lengths are multiples of segment_unit elements.
constexpr Index rows_in_chunk_of_planes = 4;
constexpr Index segment_unit = 256;
// Adding an f32 sum to an f64 sum takes as long as adding several vectors. So the rows of short
// planes are summed together: at most this many vectors, and this many rows, because memory serves
// no more streams at a time.
constexpr Index terms_together = 32;
constexpr Index max_rows_together = 8;

void order_columns(SummationOrder& order) {
  const Index position = order.channels * order.inner;
  const Index pair = Index{2} * order.lanes;
  Index repeat = 1;
  while (repeat * position % pair != 0) repeat *= 2;
  while (repeat * position < vectors_in_registers * order.lanes) repeat *= 2;
  if (repeat * position <= longest_row && repeat * fewest_joined_rows <= order.outer) {
    order.repeat = repeat;
  }
  order.row = order.repeat * position;
  order.rows = order.outer / order.repeat;
  order.rest = order.outer % order.repeat * position;
  order.rows_in_registers = order.row == vectors_in_registers * order.lanes;

  const Index short_chunks = std::min(order.rows / rows_in_short_chunk, max_short_chunks);
  const Index medium_chunks =
      order.repeat > 1 ? std::min(order.rows / rows_in_medium_chunk, max_medium_chunks) : 0;
  const Index wanted = std::max({order.rows / rows_in_long_chunk, medium_chunks, short_chunks});
  const Index most =
      std::clamp<Index>(std::min(max_partial_sums / order.row, wanted), 1, max_chunks);
  // A power of two, which most numbers of threads share evenly.
  Index chunks = 1;
  while (2 * chunks <= most) chunks *= 2;
  order.chunk_rows = std::max<Index>(divide_up(order.rows, chunks), 1);
  order.chunks = std::max<Index>(divide_up(order.rows, order.chunk_rows), 1);
}

void order_planes(SummationOrder& order) {
  const Index most = std::max<Index>(order.outer * order.inner / elements_in_chunk, 1);
  const Index chunks = std::clamp<Index>(divide_up(max_chunks_of_planes, order.channels), 1, most);
  order.segment = order.inner;
  const Index min_rows = rows_in_chunk_of_planes * chunks;
  if (chunks > 1 && order.outer < min_rows) {
    const Index segments = divide_up(min_rows, order.outer);
    order.segment = std::min(round_up(divide_up(order.inner, segments), segment_unit), order.inner);
    order.segments = divide_up(order.inner, order.segment);
  }
  order.row = order.channels * order.segment;
  order.rows = order.outer * order.segments;
  if (order.segments == 1) {
    const Index terms = divide_up(order.inner, order.lanes);
    order.rows_together = std::clamp<Index>(terms_together / terms, 1, max_rows_together);
  }
  order.chunk_rows = round_up(divide_up(order.rows, chunks), order.rows_together);
  order.chunks = divide_up(order.rows, order.chunk_rows);
}

}  // namespace

SummationOrder order_of(const Geometry& geometry, const int lanes) {
  SummationOrder order;
  order.lanes = lanes;
  order.outer = geometry.outer;
  order.channels = geometry.channels;
  order.inner = geometry.inner;
  order.columns = geometry.inner < lanes;
  if (order.columns) {
    order_columns(order);
  } else {
    order_planes(order);
  }
  return order;
}

}  // namespace onedsl::native
