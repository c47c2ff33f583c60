#include "staged_tiles.hpp"

#include <algorithm>
#include <cassert>

#include "box_copy.hpp"
#include "int_math.hpp"

namespace onedsl::native {
namespace {

// Return the positions of the rows of a chunk, and of the rest, which the last chunk has.
Range positions_of(const SummationOrder& order, const Range& rows) {
  const bool is_last = rows.end == order.rows;
  return {rows.begin * order.repeat, is_last ? order.outer : rows.end * order.repeat};
}

// Return the elements of the planes that a row has.
Range inner_of(const SummationOrder& order, const Index row) {
  const Index begin = row % order.segments * order.segment;
  return {begin, std::min(begin + order.segment, order.inner)};
}

}  // namespace

// ---- A box ----

void StagedTiles::add(const Box& box) {
  assert(!box.reduces || ends_at_unit(box));
  if (last_) process(*last_, &box);
  last_ = box;
}

void StagedTiles::finish() {
  if (last_) process(*last_, nullptr);
  last_.reset();
}

void StagedTiles::process(const Box& box, const Box* const next) const {
  const StagedPass& pass = box.reduces ? staging_.reduce() : staging_.apply();
  const auto bytes = static_cast<Index>(size_of(staging_.type()));
  Index positions = 0;
  for (std::size_t i = 0; i < box.num_streams; ++i) positions += box.streams[i].length();
  const Extents lengths{positions, box.channels.length(), box.inner.length()};
  const Extents strides{lengths[1] * lengths[2], lengths[2], 1};
  const auto is_in_place = [&](const StagedTensor& tensor) {
    for (std::size_t g = 0; g < 3; ++g) {
      if (lengths[g] > 1 && !is_strided_by(tensor.axes[g], strides[g])) return false;
    }
    return box.num_streams == 1;
  };
  const auto copy = [&](const StagedTensor& tensor, std::byte* buffer, const bool to_tensor) {
    for (std::size_t i = 0; i < box.num_streams; ++i) {
      const Ranges ranges = box.ranges(i);
      const Index at = offset_of(tensor.axes, ranges);
      const Index to_next = next == nullptr ? 0 : offset_of(tensor.axes, next->ranges(i)) - at;
      copy_box(plan_.kernels, staging_.type(), {tensor.data, tensor.axes, ranges, to_next}, buffer,
               strides, to_tensor);
      buffer += ranges[0].length() * strides[0] * bytes;
    }
  };
  TileArgs args = args_of(box, lengths);
  args.non_temporal = args_.non_temporal && pass.outputs_are_dense;
  std::array<std::byte*, 8> buffers{};
  std::byte* buffer = scratch_.staging + staging_.bytes_of_partials() + cache_line;
  for (std::size_t i = 0; i < pass.tensors.size(); ++i) {
    const StagedTensor& tensor = pass.tensors[i];
    std::byte* at = tensor.data + offset_of(tensor.axes, box.ranges(0)) * bytes;
    if (!is_in_place(tensor)) {
      at = buffers[i] = buffer;
      buffer += round_up(positions * strides[0] * bytes, cache_line) + 2 * cache_line;
      args.non_temporal = args.non_temporal && !tensor.is_written;
      if (tensor.is_read) copy(tensor, at, false);
    }
    if (const auto* const input = std::get_if<Input>(&tensor.port)) {
      args.in[*input] = at;
    } else {
      args.out[std::get<Output>(tensor.port)] = at;
    }
  }
  run_kernel(args, box);
  for (std::size_t i = 0; i < pass.tensors.size(); ++i) {
    const StagedTensor& tensor = pass.tensors[i];
    if (buffers[i] != nullptr && tensor.is_written) copy(tensor, buffers[i], true);
  }
}

// Return what the kernel of a box reads, except the memory of its tensors: the box is a dense
// problem of its own.
TileArgs StagedTiles::args_of(const Box& box, const Extents& lengths) const {
  const SummationOrder& order = args_.order;
  const auto [positions, channels, inner] = lengths;
  TileArgs args = args_;
  SummationOrder& own = args.order;
  own.outer = positions;
  own.inner = own.segment = inner;
  own.segments = own.chunks = 1;
  if (!box.reduces) own.repeat = 1;
  // Columns: the coefficients that results are written with still repeat after all channels.
  if (box.reduces || !order.columns) own.channels = channels;
  own.row = own.repeat * channels * inner;
  own.rows = own.chunk_rows = positions / own.repeat;
  own.rest = positions % own.repeat * channels * inner;
  args.exceeds_l2 = false;
  const Index entry = order.columns ? box.channels.begin * order.inner : box.channels.begin;
  assert(!args.tables.even_first || entry % 2 == 0);
  for (float* Tables::* const table : all_tables) {
    args.tables.*table += args.tables.even_first ? entry / 2 : entry;
  }
  args.partials = reinterpret_cast<double*>(scratch_.staging);
  return args;
}

void StagedTiles::run_kernel(const TileArgs& args, const Box& box) const {
  Tile tile{{0, box.channels.length()}, {0, args.order.rows}};
  tile.begins = box.begins;
  tile.ends = box.ends;
  if (!box.reduces) return plan_.passes.write(args, tile);
  plan_.passes.reduce(args, tile, scratch_);
  if (!box.ends) return;
  const Index channels = args_.order.channels;
  double* const to = args_.partials + 2 * box.chunk * channels + box.channels.begin;
  std::copy_n(args.partials, box.channels.length(), to);
  std::copy_n(args.partials + box.channels.length(), box.channels.length(), to + channels);
}

// ---- The boxes of a tile ----

namespace {

// Calls visit(part) for parts of `step`, the last of which may have up to twice as many.
template <class Visit>
void for_parts(const Range& range, const Index step, const Visit& visit) {
  for (Index at = range.begin; at < range.end;) {
    const Index end = range.end - at < 2 * step ? range.end : at + step;
    visit(Range{at, end});
    at = end;
  }
}

}  // namespace

bool StagedTiles::ends_at_unit(const Box& box) const {
  const SummationOrder& order = args_.order;
  const SumUnit unit = sum_unit(order);
  const bool whole_rows = std::all_of(
      box.streams.begin(), box.streams.begin() + box.num_streams,
      [&](const Range& rows) { return rows.length() % (unit.rows * order.repeat) == 0; });
  const auto inner_end = [&] {
    if (order.columns) return order.inner;  // which have no segments
    const Index row = box.streams[0].begin * order.segments + box.inner.begin / order.segment;
    return inner_of(order, row).end;
  };
  return (box.ends || whole_rows) &&
         (box.inner.end == inner_end() || box.inner.length() % unit.inner == 0);
}

void StagedTiles::reduce(const Tile& tile) {
  Box box;
  box.reduces = true;
  box.chunk = tile.chunk;
  for (Index c = tile.channels.begin; c < tile.channels.end; c = box.channels.end) {
    box.channels = {c, std::min(c + staging_.reduce().box[1], tile.channels.end)};
    if (args_.order.columns) {
      reduce_columns(box);
    } else {
      reduce_planes(box);
    }
  }
}

// The boxes have the order of visit_rows(): some rows of each stream.
void StagedTiles::reduce_columns(Box& box) {
  const SummationOrder& order = args_.order;
  const Range rows = rows_of(order, box.chunk);
  const Index most = staging_.reduce().box[0];
  const Index unit = sum_unit(order).rows;
  box.inner = {0, order.inner};
  box.begins = true;
  box.ends = false;
  const auto add_box = [&] {
    add(box);
    box.begins = false;
  };
  Index row = rows.begin;
  if (order.rows_in_registers) {
    box.num_streams = 1;
    while (rows.end - row >= unit) {
      const Index end = row + std::min(most, (rows.end - row) / unit * unit);
      box.streams[0] = {row * order.repeat, end * order.repeat};
      add_box();
      row = end;
    }
  }
  const Index stream = (rows.end - row) / streams;
  // Even parts, because short ones are slow.
  const Index parts = std::max<Index>(divide_up(stream, most), 1);
  const Index part = std::max(round_up(divide_up(stream, parts), unit), unit);
  for (Index at = 0; !box.ends; at += part) {
    box.ends = at + part >= stream;
    // Whole streams are neighbors.
    box.num_streams = at == 0 && box.ends ? 1 : box.streams.size();
    for (std::size_t i = 0; i < box.num_streams; ++i) {
      const Index first = row + static_cast<Index>(i) * stream;
      const Index end = first + (box.ends ? stream : at + part);
      box.streams[i] = {(first + at) * order.repeat, end * order.repeat};
    }
    // The rows and positions that the streams leave.
    if (box.ends) box.streams[box.num_streams - 1].end = positions_of(order, rows).end;
    add_box();
  }
}

// A channel's rows one after the other, and parts of long ones.
void StagedTiles::reduce_planes(Box& box) {
  const SummationOrder& order = args_.order;
  const Range rows = rows_of(order, box.chunk);
  for (Index row = rows.begin; row < rows.end;) {
    const Index end = std::min(row + staging_.reduce().box[0], rows.end);
    const Range inner = inner_of(order, row);
    box.streams[0] = {row / order.segments, (end - 1) / order.segments + 1};
    for_parts(inner, staging_.reduce().box[2], [&](const Range& part) {
      box.inner = part;
      box.begins = row == rows.begin && part.begin == inner.begin;
      box.ends = end == rows.end && part.end == inner.end;
      add(box);
    });
    row = end;
  }
}

void StagedTiles::write(const Tile& tile) {
  const SummationOrder& order = args_.order;
  const Range& rows = tile.rows;
  Box box;
  if (order.segments == 1)
    return write_range(box, tile, positions_of(order, rows), {0, order.inner});
  for (Index row = rows.begin; row < rows.end; ++row) {
    const Index position = row / order.segments;
    write_range(box, tile, {position, position + 1}, inner_of(order, row));
  }
}

void StagedTiles::write_range(Box& box, const Tile& tile, const Range& positions,
                              const Range& inner) {
  const Extents& most = staging_.apply().box;
  for (Index at = positions.begin; at < positions.end; at = box.streams[0].end) {
    box.streams[0] = {at, std::min(at + most[0], positions.end)};
    for (Index c = tile.channels.begin; c < tile.channels.end; c = box.channels.end) {
      box.channels = {c, std::min(c + most[1], tile.channels.end)};
      for_parts(inner, most[2], [&](const Range& part) {
        box.inner = part;
        add(box);
      });
    }
  }
}

}  // namespace onedsl::native
