#include "staging.hpp"

#include <algorithm>
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

}  // namespace

Staging::Staging(const Call& call, const Pointers& memory, const SummationOrder& order,
                 const PassTensors& reduce, const PassTensors& apply, const Machine& machine)
    : type_(call.data),
      element_bytes_(static_cast<Index>(size_of(call.data))),
      buffers_bytes_(machine.staging_bytes) {
  const auto add = [&](StagedPass& pass, const PassTensors& tensors) {
    tensors.read.for_each([&](const Input port) {
      // Inputs are only read. NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast)
      auto* const data = static_cast<std::byte*>(const_cast<void*>(memory.in[port]));
      pass.tensors.push_back({port, true, false, data, split_axes(call.layouts->in[port], order)});
    });
    (tensors.read_back | tensors.written).for_each([&](const Output port) {
      const bool is_written = tensors.written.has(port);
      auto* const data = static_cast<std::byte*>(memory.out[port]);
      const Layout& layout = call.layouts->out[port];
      const bool is_read = tensors.read_back.has(port);
      pass.tensors.push_back({port, is_read, is_written, data, split_axes(layout, order)});
      pass.outputs_are_dense &= !is_written || layout.empty();
    });
  };
  reduce_.reduces = true;
  add(reduce_, reduce);
  add(apply_, apply);
  for (StagedPass* const pass : {&reduce_, &apply_}) {
    choose_least(*pass,
                 {order.outer, order.channels, order.segments > 1 ? order.segment : order.inner});
  }
}

void Staging::choose_boxes(const SummationOrder& order, const Index block) {
  bytes_of_partials_ = round_up(2 * block * static_cast<Index>(sizeof(double)), cache_line);
  for (StagedPass* const pass : {&reduce_, &apply_}) {
    choose_box(*pass, order, block);
    // Each begins a cache line, after memory that Last<> may read.
    const Index buffer = round_up(pass->elements * element_bytes_, cache_line) + 2 * cache_line;
    bytes_ =
        std::max(bytes_, bytes_of_partials_ + static_cast<Index>(pass->tensors.size()) * buffer);
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

}  // namespace onedsl::native
