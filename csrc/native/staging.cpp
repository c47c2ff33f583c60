#include "staging.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "../core/view.hpp"
#include "int_math.hpp"

namespace onedsl::native {
namespace {

// Bytes that are read or written contiguously, where the order of the elements allows it: two
// cache lines, since they begin anywhere in a line.
constexpr Index contiguous_bytes = 128;
// Smaller positions are copied together, because a box costs some 50 ns.
constexpr Index min_joined_bytes = 2048;
// Columns: the channels of a box are a multiple of this, or a whole block.
constexpr Index channels_in_unit = 64;

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

// ---- The boxes of a run ----

Staging::Staging(const Call& call, const Kernels& kernels, Task& task, const PassTensors& reduce,
                 const PassTensors& apply, const Machine& machine)
    : kernels_(kernels),
      type_(call.data),
      element_bytes_(static_cast<Index>(size_of(call.data))),
      buffers_bytes_(machine.staging_bytes) {
  const SummationOrder& order = task.order;
  const auto add = [&](StagedPass& pass, const PassTensors& tensors) {
    tensors.read.for_each([&](const Input port) {
      // Inputs are only read. NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast)
      auto* const data = static_cast<std::byte*>(const_cast<void*>(task.memory.in[port]));
      pass.tensors.push_back({port, true, false, data, split_axes(call.layouts->in[port], order)});
    });
    (tensors.read_back | tensors.written).for_each([&](const Output port) {
      const bool is_written = tensors.written.has(port);
      auto* const data = static_cast<std::byte*>(task.memory.out[port]);
      const Layout& layout = call.layouts->out[port];
      const bool is_read = tensors.read_back.has(port);
      pass.tensors.push_back({port, is_read, is_written, data, split_axes(layout, order)});
      pass.outputs_are_dense &= !is_written || layout.empty();
    });
  };
  reduce_.reduces = true;
  add(reduce_, reduce);
  add(write_, apply);
  for (StagedPass* const pass : {&reduce_, &write_}) {
    choose_least(*pass,
                 {order.outer, order.channels, order.segments > 1 ? order.segment : order.inner});
  }
  if (task.samples.count > 0) move_samples(task.samples, order);
}

void Staging::choose_boxes(const SummationOrder& order, const Index block) {
  partials_ = round_up(2 * block * static_cast<Index>(sizeof(double)), cache_line);
  for (StagedPass* const pass : {&reduce_, &write_}) {
    choose_box(*pass, order, block);
    // Each begins a cache line, after memory that Last<> may read.
    const Index buffer = round_up(pass->elements * element_bytes_, cache_line) + 2 * cache_line;
    bytes_ = std::max(bytes_, partials_ + static_cast<Index>(pass->tensors.size()) * buffer);
  }
}

// Sets the least extents of a box with which whole cache lines of each tensor are copied, for
// example for a tensor whose inner group in the memory order of src is (4, 5). If its axis of 5 is
// the fastest in memory, as many elements of inner as a line has are enough. If that of 4 is, they
// are 5 elements of inner apart: 5 times as many.
void Staging::choose_least(StagedPass& pass, const Extents& sizes) const {
  pass.least = {1, 1, 1};
  for (const StagedTensor& tensor : pass.tensors) {
    std::size_t group = 2;
    Index span = 1;
    std::size_t least = 0;
    for (std::size_t g = 0; g < 3; ++g) {
      Index faster = 1;
      for (std::size_t axis = tensor.axes[g].size(); axis-- > 0;) {
        const std::size_t stride = magnitude(tensor.axes[g][axis].stride);
        if (stride > 0 && (least == 0 || stride < least)) {
          group = g;
          span = faster;
          least = stride;
        }
        faster *= tensor.axes[g][axis].size;
      }
    }
    const Index enough = std::min(sizes[group], span * (contiguous_bytes / element_bytes_));
    pass.least[group] = std::max(pass.least[group], enough);
  }
}

void Staging::choose_box(StagedPass& pass, const SummationOrder& order, const Index block) const {
  const auto has_dense_positions = [&](const StagedTensor& tensor) {
    return is_strided_by(tensor.axes[2], 1) && is_strided_by(tensor.axes[1], order.inner);
  };
  const bool is_in_place =
      !order.columns && order.rows_together == 1 && order.segments == 1 &&
      block * order.inner * element_bytes_ >= min_joined_bytes &&
      std::all_of(pass.tensors.begin(), pass.tensors.end(), has_dense_positions);
  if (is_in_place) {
    pass.box = {1, block, order.inner};
  } else if (order.columns) {
    choose_box_of_columns(pass, order, block);
  } else {
    choose_box_of_planes(pass, order, block);
  }
}

// Return what a box has a whole number of, unless the rows or their elements end.
SumUnit Staging::unit_of(const StagedPass& pass, const SummationOrder& order) {
  const SumUnit unit = sum_unit(order);
  return {pass.reduces ? unit.rows : 1, unit.inner};
}

Index Staging::elements_of_buffer(const StagedPass& pass) const {
  const Index count = std::max<Index>(static_cast<Index>(pass.tensors.size()), 1);
  return buffers_bytes_ / std::max<Index>(count, 2) / element_bytes_;
}

// Boxes of whole positions. Those that are summed have rows of each stream.
void Staging::choose_box_of_columns(StagedPass& pass, const SummationOrder& order,
                                    const Index block) const {
  const Index elements = elements_of_buffer(pass);
  const Index most = buffers_bytes_ / element_bytes_;
  auto& [rows, channels, inner] = pass.box;
  inner = order.inner;
  const Index repeat = pass.reduces ? order.repeat : 1;
  const Index together = pass.reduces && !order.rows_in_registers ? streams : 1;
  const Index row_unit = unit_of(pass, order).rows;
  const Index width = together * repeat * inner;  // of a channel's row
  // A row of several positions has all channels.
  const Index unit = order.repeat > 1 ? order.channels : std::min(channels_in_unit, block);
  rows = round_up(divide_up(pass.least[0], repeat), row_unit);
  while (rows > row_unit && rows * width * unit > most) rows -= row_unit;
  channels = std::min(std::max(elements / (rows * width) / unit * unit, unit), block);
  if (channels == block) rows = std::max(rows, elements / (width * block) / rows * rows);
  pass.elements = rows * channels * inner;
  if (!pass.reduces) return;
  rows = std::min(rows, round_up(divide_up(order.chunk_rows, together), row_unit));
  // The last box also has the rows that are left by the streams, and the rest.
  pass.elements =
      (together * (rows + row_unit) + row_unit) * repeat * inner * channels + order.rest;
}

// Boxes of whole planes or segments, or of parts of them if these are too large for a buffer.
void Staging::choose_box_of_planes(StagedPass& pass, const SummationOrder& order,
                                   const Index block) const {
  const Index elements = elements_of_buffer(pass);
  const Index most = buffers_bytes_ / element_bytes_;
  const SumUnit unit = unit_of(pass, order);
  auto& [rows, channels, inner] = pass.box;
  inner = order.segments > 1 ? order.segment : order.inner;
  const Index part = std::min(inner, unit.inner);
  rows = order.segments > 1 ? 1 : round_up(pass.least[0], unit.rows);
  // Fewer rows and channels share their cache lines, rather than more than the buffers hold.
  const Index most_channels = std::max<Index>(most / (unit.rows * part), 1);
  channels = std::min({pass.least[1], block, most_channels});
  while (rows > unit.rows && rows * part * channels > most) rows -= unit.rows;
  if (rows * channels * inner > most) {
    if (pass.reduces) rows = unit.rows;
    inner = std::max(elements / (rows * channels) / unit.inner * unit.inner, unit.inner);
    pass.elements = 2 * rows * channels * inner;  // see for_parts()
    return;
  }
  channels = std::min(std::max(elements / (rows * inner) / channels * channels, channels), block);
  if (channels == block && order.segments == 1) {
    rows = std::max(rows, elements / (inner * block) / rows * rows);
  }
  pass.elements = rows * channels * inner;
}

void Staging::move_samples(Samples& samples, const SummationOrder& order) {
  const StagedTensor& src = reduce_.tensors.front();
  for (Index i = 0; i < samples.count; ++i) {
    const Index position = samples.at[i] / (order.channels * order.inner);
    samples.at[i] =
        offset_of(src.axes[0], position) + offset_of(src.axes[2], samples.at[i] % order.inner);
  }
  const Layout& channels = src.axes[1];
  if (channels.size() <= 1) {
    samples.channel_stride = channels.empty() ? 0 : channels.front().stride;
    return;
  }
  const auto bytes = static_cast<std::size_t>(element_bytes_);
  samples_.resize(static_cast<std::size_t>(samples.count * order.channels) * bytes);
  std::byte* to = samples_.data();
  for (Index i = 0; i < samples.count; ++i) {
    for (Index c = 0; c < order.channels; ++c, to += bytes) {
      const Index offset = samples.at[i] + offset_of(channels, c);
      std::memcpy(to, src.data + offset * element_bytes_, bytes);
    }
    samples.at[i] = i * order.channels;
  }
  samples.src = samples_.data();
  samples.channel_stride = 1;
}

// ---- A box ----

void Staging::Tiles::add(const Box& box) {
  assert(!box.reduces || ends_at_unit(box));
  if (last_) process(*last_, &box);
  last_ = box;
}

void Staging::Tiles::finish() {
  if (last_) process(*last_, nullptr);
  last_.reset();
}

void Staging::Tiles::process(const Box& box, const Box* const next) const {
  const StagedPass& pass = box.reduces ? staging_.reduce_ : staging_.write_;
  const Index bytes = staging_.element_bytes_;
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
      copy_box(staging_.kernels_, staging_.type_, {tensor.data, tensor.axes, ranges, to_next},
               buffer, strides, to_tensor);
      buffer += ranges[0].length() * strides[0] * bytes;
    }
  };
  Task local = task_;
  local.non_temporal = task_.non_temporal && pass.outputs_are_dense;
  std::array<std::byte*, 8> buffers{};
  std::byte* buffer = scratch_.staging + staging_.partials_ + cache_line;
  for (std::size_t i = 0; i < pass.tensors.size(); ++i) {
    const StagedTensor& tensor = pass.tensors[i];
    std::byte* at = tensor.data + offset_of(tensor.axes, box.ranges(0)) * bytes;
    if (!is_in_place(tensor)) {
      at = buffers[i] = buffer;
      buffer += round_up(positions * strides[0] * bytes, cache_line) + 2 * cache_line;
      local.non_temporal = local.non_temporal && !tensor.is_written;
      if (tensor.is_read) copy(tensor, at, false);
    }
    if (const auto* const input = std::get_if<Input>(&tensor.port)) {
      local.memory.in[*input] = at;
    } else {
      local.memory.out[std::get<Output>(tensor.port)] = at;
    }
  }
  run_kernel(local, box, lengths);
  for (std::size_t i = 0; i < pass.tensors.size(); ++i) {
    const StagedTensor& tensor = pass.tensors[i];
    if (buffers[i] != nullptr && tensor.is_written) copy(tensor, buffers[i], true);
  }
}

// Runs a kernel on a box, as on a dense problem of its own. `local` has its tensors.
void Staging::Tiles::run_kernel(Task& local, const Box& box, const Extents& lengths) const {
  const SummationOrder& order = task_.order;
  const auto [positions, channels, inner] = lengths;
  SummationOrder& own = local.order;
  own.outer = positions;
  own.inner = own.segment = inner;
  own.segments = own.chunks = 1;
  if (!box.reduces) own.repeat = 1;
  // Columns: the coefficients that results are written with still repeat after all channels.
  if (box.reduces || !order.columns) own.channels = channels;
  own.row = own.repeat * channels * inner;
  own.rows = own.chunk_rows = positions / own.repeat;
  own.rest = positions % own.repeat * channels * inner;
  local.exceeds_l2 = false;
  Tables& tables = local.workspace.tables;
  const Index entry = order.columns ? box.channels.begin * order.inner : box.channels.begin;
  for (float* Tables::* const table : all_tables) {
    tables.*table += tables.even_first ? entry / 2 : entry;
  }
  Tile tile{{0, channels}, {0, own.rows}};
  tile.begins = box.begins;
  tile.ends = box.ends;
  if (!box.reduces) return staging_.kernels_.write(local, tile);
  auto* const partials = reinterpret_cast<double*>(scratch_.staging);
  local.workspace.partials = partials;
  staging_.kernels_.reduce(local, tile, scratch_);
  if (!box.ends) return;
  double* const to = task_.workspace.partials + 2 * box.chunk * order.channels + box.channels.begin;
  std::copy_n(partials, channels, to);
  std::copy_n(partials + channels, channels, to + order.channels);
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

bool Staging::Tiles::ends_at_unit(const Box& box) const {
  const SummationOrder& order = task_.order;
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

void Staging::Tiles::reduce(const Tile& tile) {
  Box box;
  box.reduces = true;
  box.chunk = tile.chunk;
  for (Index c = tile.channels.begin; c < tile.channels.end; c = box.channels.end) {
    box.channels = {c, std::min(c + staging_.reduce_.box[1], tile.channels.end)};
    if (task_.order.columns) {
      reduce_columns(box);
    } else {
      reduce_planes(box);
    }
  }
}

// The boxes have the order of visit_rows(): some rows of each stream.
void Staging::Tiles::reduce_columns(Box& box) {
  const SummationOrder& order = task_.order;
  const Range rows = rows_of(order, box.chunk);
  const Index most = staging_.reduce_.box[0];
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
void Staging::Tiles::reduce_planes(Box& box) {
  const SummationOrder& order = task_.order;
  const Range rows = rows_of(order, box.chunk);
  for (Index row = rows.begin; row < rows.end;) {
    const Index end = std::min(row + staging_.reduce_.box[0], rows.end);
    const Range inner = inner_of(order, row);
    box.streams[0] = {row / order.segments, (end - 1) / order.segments + 1};
    for_parts(inner, staging_.reduce_.box[2], [&](const Range& part) {
      box.inner = part;
      box.begins = row == rows.begin && part.begin == inner.begin;
      box.ends = end == rows.end && part.end == inner.end;
      add(box);
    });
    row = end;
  }
}

void Staging::Tiles::write(const Tile& tile) {
  const SummationOrder& order = task_.order;
  const Range& rows = tile.rows;
  Box box;
  if (order.segments == 1)
    return write_range(box, tile, positions_of(order, rows), {0, order.inner});
  for (Index row = rows.begin; row < rows.end; ++row) {
    const Index position = row / order.segments;
    write_range(box, tile, {position, position + 1}, inner_of(order, row));
  }
}

void Staging::Tiles::write_range(Box& box, const Tile& tile, const Range& positions,
                                 const Range& inner) {
  const Extents& most = staging_.write_.box;
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
