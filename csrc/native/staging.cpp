#include "staging.hpp"

#include <algorithm>
#include <cstring>

#include "int_math.hpp"

namespace onedsl::native {
namespace {

// Bytes of the buffers of all tensors of a pass, and at most of one: with the lines that they are
// copied from and to, they stay in a second-level cache of 512 KB.
constexpr Index buffers_bytes = 262144;
constexpr Index buffer_bytes = 131072;
// Where whole cache lines of each tensor need more.
constexpr Index most_buffer_bytes = 2 * buffer_bytes;
// Bytes that are read or written contiguously, where the order of the elements allows it: two
// cache lines, since they begin anywhere in a line.
constexpr Index contiguous_bytes = 128;
// Boxes of fewer bytes take more time than a copy of several together.
constexpr Index least_joined_bytes = 2048;
// A box begins at a multiple of a cache line, after memory that Last<> may read.
constexpr std::size_t line = 64;

constexpr std::array tensor_inputs = {Input::src, Input::diff_dst, Input::residual, Input::dst};
constexpr std::array tensor_outputs = {Output::dst, Output::diff_src, Output::diff_residual};

// Split the axes of a tensor into those of outer, channels and inner.
Staging::Axes split(Layout layout, const SummationOrder& order) {
  if (layout.empty()) layout = {{order.outer * order.channels * order.inner, 1}};
  const Staging::Extents sizes{order.outer, order.channels, order.inner};
  Staging::Axes axes;
  for (std::size_t group = 3; group-- > 0;) {
    for (Index needed = sizes[group]; needed > 1;) {
      Axis& fastest = layout.back();
      const Index size = std::min(needed, fastest.size);
      axes[group].insert(axes[group].begin(), Axis{size, fastest.stride});
      needed /= size;
      fastest = {fastest.size / size, fastest.stride * size};
      if (fastest.size == 1) layout.pop_back();
    }
  }
  return axes;
}

// Return the offset of the i-th element.
Index offset_of(const Layout& axes, Index i) {
  Index offset = 0;
  for (std::size_t axis = axes.size(); axis-- > 0; i /= axes[axis].size) {
    offset += i % axes[axis].size * axes[axis].stride;
  }
  return offset;
}

struct Loop {
  Index size;
  Index tensor;  // strides, in elements
  Index local;
};

// A copy between a tensor and a buffer: loops, slowest first.
class BoxCopy {
 public:
  BoxCopy(const Kernels& kernels, const DataType type, std::byte* const tensor,
          const bool to_tensor)
      : kernels_(kernels),
        type_(type),
        bytes_(static_cast<Index>(size_of(type))),
        tensor_(tensor),
        to_tensor_(to_tensor) {}

  // Copies the elements of ranges of groups of axes, whose local strides are given.
  void copy(const Staging::Axes& axes, const std::array<Range, 3>& ranges,
            const Staging::Extents& local, std::byte* const buffer) {
    local_ = buffer;
    axes_ = &axes;
    ranges_ = &ranges;
    local_strides_ = &local;
    visit_group(0, 0, 0);
  }

 private:
  void visit_group(const std::size_t group, const Index tensor, const Index local) {
    if (group == 3) return copy_loops(tensor, local);
    const Layout& axes = (*axes_)[group];
    visit(group, axes.data(), axes.data() + axes.size(), (*ranges_)[group], tensor, local);
  }

  // Visits a range of the elements of some axes as boxes: the end of one index of the slowest axis,
  // whole ones, and the beginning of another.
  void visit(const std::size_t group, const Axis* const axis, const Axis* const end,
             const Range& range, const Index tensor, const Index local) {
    const Index stride = (*local_strides_)[group];
    if (range.begin == range.end) return;
    if (axis == end) return visit_group(group + 1, tensor, local);
    Index inner = 1;
    for (const Axis* next = axis + 1; next != end; ++next) inner *= next->size;
    Index at = range.begin;
    const auto part = [&](const Index stop) {
      const Index index = at / inner;
      visit(group, axis + 1, end, {at - index * inner, stop - index * inner},
            tensor + index * axis->stride, local + (at - range.begin) * stride);
      at = stop;
    };
    const Index first_end = (at / inner + 1) * inner;
    if (at % inner != 0 || first_end > range.end) part(std::min(first_end, range.end));
    const Index whole = (range.end - at) / inner;
    if (whole > 0) {
      const std::size_t before = num_loops_;
      loops_[num_loops_++] = {whole, axis->stride, inner * stride};
      Index size = inner;
      for (const Axis* next = axis + 1; next != end; ++next) {
        size /= next->size;
        loops_[num_loops_++] = {next->size, next->stride, size * stride};
      }
      visit_group(group + 1, tensor + at / inner * axis->stride,
                  local + (at - range.begin) * stride);
      num_loops_ = before;
      at += whole * inner;
    }
    if (at < range.end) part(range.end);
  }

  void copy_loops(const Index tensor, const Index local) {
    num_merged_ = 0;
    for (std::size_t i = 0; i < num_loops_; ++i) {
      const Loop& loop = loops_[i];
      if (loop.size == 1) continue;
      Loop* const last = num_merged_ == 0 ? nullptr : &merged_[num_merged_ - 1];
      if (last != nullptr && last->tensor == loop.tensor * loop.size &&
          last->local == loop.local * loop.size) {
        *last = {last->size * loop.size, loop.tensor, loop.local};
      } else {
        merged_[num_merged_++] = loop;
      }
    }
    const auto find = [&](const auto& chosen) {
      std::size_t i = num_merged_;
      while (i > 0 && !chosen(merged_[i - 1])) --i;
      return i;
    };
    const auto take = [&](const auto& chosen) {
      Loop loop{1, 0, 0};
      if (const std::size_t i = find(chosen); i > 0) {
        loop = merged_[i - 1];
        std::copy(&merged_[i], &merged_[num_merged_], &merged_[i - 1]);
        --num_merged_;
      }
      return loop;
    };
    const auto any = [](const Loop&) { return true; };
    // The loop over neighbors in the buffer, and the one over neighbors in the tensor.
    const Loop x = take([](const Loop& loop) { return loop.local == 1; });
    const auto neighbors = [](const Loop& loop) { return loop.tensor == 1; };
    const bool has_neighbors = find(neighbors) > 0;
    const Loop y = has_neighbors ? take(neighbors) : take(any);
    // The rows of `from` have columns of neighbors.
    const bool transposes = has_neighbors && x.tensor != 1;
    const bool swaps = transposes && !to_tensor_;
    const Loop& rows = swaps ? x : y;
    const Loop& columns = swaps ? y : x;
    Copy copy;
    copy.to_tensor = to_tensor_;
    copy.rows = rows.size;
    copy.columns = columns.size;
    copy.from_row = to_tensor_ ? rows.local : rows.tensor;
    copy.to_row = to_tensor_ ? rows.tensor : rows.local;
    copy.from_column = to_tensor_ ? columns.local : columns.tensor;
    copy.to_column = to_tensor_ ? columns.tensor : columns.local;
    // One element, or neighbors in both.
    if (columns.size == 1) copy.from_column = copy.to_column = 1;
    run(copy, 0, tensor, local);
  }

  void run(Copy& copy, const std::size_t loop, const Index tensor, const Index local) const {
    if (loop == num_merged_) {
      std::byte* const in_tensor = tensor_ + tensor * bytes_;
      std::byte* const in_buffer = local_ + local * bytes_;
      copy.from = to_tensor_ ? in_buffer : in_tensor;
      copy.to = to_tensor_ ? in_tensor : in_buffer;
      return kernels_.copy(copy, type_);
    }
    const Loop& each = merged_[loop];
    for (Index i = 0; i < each.size; ++i) {
      run(copy, loop + 1, tensor + i * each.tensor, local + i * each.local);
    }
  }

  const Kernels& kernels_;
  DataType type_;
  Index bytes_;
  std::byte* tensor_;
  std::byte* local_ = nullptr;
  bool to_tensor_;
  const Staging::Axes* axes_ = nullptr;
  const std::array<Range, 3>* ranges_ = nullptr;
  const Staging::Extents* local_strides_ = nullptr;
  // Each group may split an axis.
  std::array<Loop, max_rank + 3> loops_;
  std::array<Loop, max_rank + 3> merged_;
  std::size_t num_loops_ = 0;
  std::size_t num_merged_ = 0;
};

Index length(const Range& range) { return range.end - range.begin; }

Range rows_of(const SummationOrder& order, const Index chunk) {
  const Index first = chunk * order.chunk_rows;
  return {std::min(first, order.rows), std::min(first + order.chunk_rows, order.rows)};
}

// Positions of the rest, which the last chunk has.
Index rest_of(const SummationOrder& order, const Index chunk) {
  return chunk + 1 == order.chunks ? order.rest / (order.channels * order.inner) : 0;
}

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

// A part of a tile, as a dense problem of its own: the positions of all `streams`, which have equal
// lengths except the last one, then channels and inner elements.
struct Staging::Box {
  std::array<Range, 4> streams;
  std::size_t num_streams = 1;
  Range channels;
  Range inner;

  Index positions() const {
    Index sum = 0;
    for (std::size_t i = 0; i < num_streams; ++i) sum += length(streams[i]);
    return sum;
  }
};

bool needs_staging(const Problem& problem, const Ports& ports) {
  if (!problem.layouts) return false;
  const Layouts& layouts = *problem.layouts;
  return std::any_of(tensor_inputs.begin(), tensor_inputs.end(),
                     [&](const Input port) {
                       return ports.in[port] != nullptr && !layouts.in[port].empty();
                     }) ||
         std::any_of(tensor_outputs.begin(), tensor_outputs.end(), [&](const Output port) {
           return ports.out[port] != nullptr && !layouts.out[port].empty();
         });
}

Staging::Staging(const Problem& problem, const Kernels& kernels, Task& task, const Ports& ports,
                 Schedule& schedule)
    : kernels_(kernels),
      type_(problem.data),
      element_bytes_(static_cast<Index>(size_of(problem.data))) {
  const SummationOrder& order = task.order;
  const auto input = [&](Pass& pass, const Input port, const void* Tensors::* const member) {
    if (ports.in[port] == nullptr) return;
    // Inputs are only read.
    auto* const data = static_cast<std::byte*>(const_cast<void*>(ports.in[port]));
    const Layout& layout = problem.layouts->in[port];
    pass.tensors.push_back({member, nullptr, true, false, data, split(layout, order)});
  };
  const auto output = [&](Pass& pass, const Output port, void* Tensors::* const member) {
    if (ports.out[port] == nullptr) return;
    auto* const data = static_cast<std::byte*>(ports.out[port]);
    const Layout& layout = problem.layouts->out[port];
    pass.tensors.push_back({nullptr, member, false, true, data, split(layout, order)});
    pass.outputs_are_dense &= layout.empty();
  };
  input(reduce_, Input::src, &Tensors::src);
  input(reduce_, Input::diff_dst, &Tensors::diff_dst);
  input(reduce_, Input::dst, &Tensors::dst);
  if (problem.statistics == Statistics::batch) input(write_, Input::src, &Tensors::src);
  input(write_, Input::residual, &Tensors::residual);
  output(write_, Output::dst, &Tensors::result);
  output(write_, Output::diff_src, &Tensors::result);
  if (task.reduce_writes_residual) {
    output(reduce_, Output::diff_residual, &Tensors::diff_residual);
    write_.tensors.push_back(reduce_.tensors.back());
    write_.tensors.back().is_read = true;
    write_.tensors.back().is_written = false;
  } else {
    input(write_, Input::diff_dst, &Tensors::diff_dst);
    input(write_, Input::dst, &Tensors::dst);
    output(write_, Output::diff_residual, &Tensors::diff_residual);
  }

  if (!order.columns) {
    // Blocks of enough channels for whole lines of each tensor.
    plan(reduce_, order, true, order.channels);
    plan(write_, order, false, order.channels);
    const Index most = std::max<Index>(schedule.block, 256);
    const Index needed = std::max(reduce_.least[1], write_.least[1]);
    schedule.block = std::min({std::max(schedule.block, needed), most, order.channels});
    schedule.panel = std::max(schedule.panel, schedule.block);
  }
  schedule.prefetch_next_panel = false;
  plan(reduce_, order, true, schedule.block);
  plan(write_, order, false, schedule.block);
  partials_ = static_cast<std::size_t>(round_up(2 * schedule.block, 8)) * sizeof(double);
  for (Pass* const pass : {&reduce_, &write_}) {
    const auto buffer = static_cast<std::size_t>(round_up(pass->elements * element_bytes_, 64));
    bytes_ = std::max(bytes_, partials_ + pass->tensors.size() * (buffer + 2 * line));
  }

  // The samples of src.
  if (task.samples.count == 0) return;
  const Axes& axes = reduce_.tensors.front().axes;
  const std::byte* const src = reduce_.tensors.front().data;
  Samples& samples = task.samples;
  for (Index i = 0; i < samples.count; ++i) {
    const Index position = samples.at[i] / (order.channels * order.inner);
    samples.at[i] = offset_of(axes[0], position) + offset_of(axes[2], samples.at[i] % order.inner);
  }
  if (axes[1].size() <= 1) {
    samples.channel_stride = axes[1].empty() ? 0 : axes[1].front().stride;
    return;
  }
  samples_.resize(static_cast<std::size_t>(samples.count * order.channels * element_bytes_));
  std::byte* to = samples_.data();
  for (Index i = 0; i < samples.count; ++i) {
    for (Index c = 0; c < order.channels; ++c, to += element_bytes_) {
      std::memcpy(to, src + (samples.at[i] + offset_of(axes[1], c)) * element_bytes_,
                  static_cast<std::size_t>(element_bytes_));
    }
    samples.at[i] = i * order.channels;
  }
  samples.src = samples_.data();
  samples.channel_stride = 1;
}

// Chooses the boxes of a pass.
void Staging::plan(Pass& pass, const SummationOrder& order, const bool reduces,
                   const Index block) const {
  const Index per_line = contiguous_bytes / element_bytes_;
  Extents sizes{order.outer, order.channels, order.inner};
  if (order.segments > 1) sizes[2] = order.segment;
  pass.least = {1, 1, 1};
  pass.joined = order.rows_together == 1 && order.segments == 1 && !order.columns;
  for (const Tensor& tensor : pass.tensors) {
    std::size_t group = 2;
    Index span = 1;  // of the axes of its group that are faster than the fastest one in memory
    Index least = 0;
    for (std::size_t g = 0; g < 3; ++g) {
      Index faster = 1;
      for (std::size_t axis = tensor.axes[g].size(); axis-- > 0;) {
        const Index stride = std::abs(tensor.axes[g][axis].stride);
        if (stride > 0 && (least == 0 || stride < least)) {
          group = g;
          span = faster;
          least = stride;
        }
        faster *= tensor.axes[g][axis].size;
      }
    }
    pass.least[group] = std::max(pass.least[group], std::min(sizes[group], span * per_line));
    const auto is = [&](const std::size_t g, const Index stride) {
      const Layout& axes = tensor.axes[g];
      return axes.empty() || (axes.size() == 1 && axes.front().stride == stride);
    };
    pass.joined = pass.joined && is(2, 1) && is(1, order.inner);
  }

  const auto count = static_cast<Index>(pass.tensors.size());
  const Index elements = std::min(buffer_bytes, buffers_bytes / count) / element_bytes_;
  const Index most = most_buffer_bytes / element_bytes_;
  const auto fitting = [&](const Index others, const Index unit, const Index size) {
    return std::min(std::max(elements / others / unit * unit, unit), size);
  };
  auto& [rows, channels, inner] = pass.box;
  inner = sizes[2];
  if (order.columns) {
    // A row of several positions has all channels.
    const Index unit = order.repeat > 1 ? order.channels : std::min<Index>(64, order.channels);
    const Index row = order.repeat * inner;
    if (reduces) {
      const Index together = order.rows_in_registers ? 1 : 4;
      rows = round_up(divide_up(pass.least[0], order.repeat), 8);
      while (rows > 8 && together * rows * row * unit > most) rows -= 8;
      channels = fitting(together * rows * row, unit, block);
      if (channels == block) rows = std::max(rows, elements / (together * row * block) / 8 * 8);
      rows = std::min(rows, round_up(divide_up(order.chunk_rows, together), 8));
      // The last box also has the rows that are left by the streams, and the rest.
      pass.elements = (together * (rows + 8) + 8) * row * channels + order.rest;
    } else {
      rows = std::min(pass.least[0], std::max<Index>(most / (inner * unit), 1));
      channels = fitting(rows * inner, unit, block);
      if (channels == block) {
        rows = std::max(rows, elements / (inner * block) / pass.least[0] * pass.least[0]);
      }
      pass.elements = 2 * rows * channels * inner;
    }
    return;
  }
  const Index step = Index{16} * order.lanes;  // of the sums, see add_segments()
  if (pass.joined && block * inner * element_bytes_ >= least_joined_bytes) {
    rows = 1;
    channels = block;
    pass.elements = 0;
    return;
  }
  rows = std::min(round_up(pass.least[0], order.rows_together), std::max<Index>(order.rows, 1));
  if (order.segments > 1) rows = 1;
  channels = std::min(pass.least[1], block);
  while (rows > order.rows_together && rows * channels * std::min(inner, step) > most) {
    rows -= order.rows_together;
  }
  if (rows * channels * inner > most) {
    if (reduces) rows = 1;
    inner = std::max(elements / (rows * channels) / step * step, step);
    pass.elements = 2 * rows * channels * inner;
    return;
  }
  channels = std::max(channels, fitting(rows * inner, 1, block));
  if (channels == block) {
    rows = std::max(rows, elements / (inner * block) / order.rows_together * order.rows_together);
    if (order.segments > 1) rows = 1;
  }
  pass.elements = rows * channels * inner;
}

// Calls run(task, tile) with the tensors and tables of a box.
template <class Run>
void Staging::run(const Task& task, const Pass& pass, const Box& box, std::byte* const memory,
                  const Run& run) const {
  Task local = task;
  const SummationOrder& order = task.order;
  const Extents lengths{box.positions(), length(box.channels), length(box.inner)};
  const Extents strides{lengths[1] * lengths[2], lengths[2], 1};
  const std::array<Range, 3> ranges{box.streams[0], box.channels, box.inner};
  local.order.outer = lengths[0];
  local.order.inner = lengths[2];
  local.order.segments = 1;
  local.order.segment = lengths[2];
  local.order.rest = 0;
  local.order.chunks = 1;
  local.out_of_cache = false;
  local.non_temporal = task.non_temporal && pass.outputs_are_dense;
  Tables& tables = local.workspace.tables;
  const Index entry = order.columns ? box.channels.begin * order.inner : box.channels.begin;
  for (float** const table :
       {&tables.pivot, &tables.mean, &tables.scale, &tables.beta, &tables.shift, &tables.slope}) {
    *table += tables.even_first ? entry / 2 : entry;
  }
  const auto is_in_place = [&](const Tensor& tensor) {
    if (box.num_streams > 1) return false;
    for (std::size_t g = 0; g < 3; ++g) {
      const Layout& axes = tensor.axes[g];
      if (lengths[g] > 1 && (axes.size() != 1 || axes.front().stride != strides[g])) return false;
    }
    return true;
  };
  std::byte* buffer = memory + partials_ + line;
  std::array<std::byte*, 8> buffers{};
  const auto copy = [&](const Tensor& tensor, std::byte* to, const bool to_tensor) {
    BoxCopy copier(kernels_, type_, tensor.data, to_tensor);
    std::array<Range, 3> part = ranges;
    Index before = 0;
    for (std::size_t i = 0; i < box.num_streams; ++i) {
      part[0] = box.streams[i];
      copier.copy(tensor.axes, part, strides, to + before * strides[0] * element_bytes_);
      before += length(part[0]);
    }
  };
  for (std::size_t i = 0; i < pass.tensors.size(); ++i) {
    const Tensor& tensor = pass.tensors[i];
    std::byte* at = nullptr;
    if (is_in_place(tensor)) {
      at = tensor.data;
      for (std::size_t g = 0; g < 3; ++g) {
        at += offset_of(tensor.axes[g], ranges[g].begin) * element_bytes_;
      }
    } else {
      at = buffers[i] = buffer;
      buffer += round_up(lengths[0] * strides[0] * element_bytes_, 64) + 2 * line;
      local.non_temporal = local.non_temporal && !tensor.is_written;
      if (tensor.is_read) copy(tensor, at, false);
    }
    if (tensor.input != nullptr) {
      local.tensors.*tensor.input = at;
    } else {
      local.tensors.*tensor.output = at;
    }
  }
  run(local, Tile{{0, lengths[1]}, 0});
  for (std::size_t i = 0; i < pass.tensors.size(); ++i) {
    const Tensor& tensor = pass.tensors[i];
    if (buffers[i] != nullptr && tensor.is_written) copy(tensor, buffers[i], true);
  }
}

void Staging::reduce(const Task& task, const Tile& tile, const TileScratch& scratch) const {
  const SummationOrder& order = task.order;
  Task local = task;
  auto* const partials = reinterpret_cast<double*>(scratch.staging);
  local.workspace.partials = partials;
  Box box;
  const auto reduce_part = [&](const bool begins, const bool ends) {
    run(local, reduce_, box, scratch.staging, [&](Task& part, Tile part_tile) {
      part.order.channels = length(box.channels);
      part.order.rows = box.positions() / order.repeat;
      part.order.rest = box.positions() % order.repeat * order.channels * order.inner;
      part.order.chunk_rows = part.order.rows;
      part.order.row = order.repeat * length(box.channels) * length(box.inner);
      part_tile.begins = begins;
      part_tile.ends = ends;
      kernels_.reduce(part, part_tile, scratch);
    });
  };
  for (Index c = tile.channels.begin; c < tile.channels.end; c = box.channels.end) {
    box.channels = {c, std::min(c + reduce_.box[1], tile.channels.end)};
    if (order.columns) {
      reduce_columns(order, tile.chunk, box, reduce_part);
    } else {
      reduce_planes(order, tile.chunk, box, reduce_part);
    }
    double* const to = task.workspace.partials + 2 * tile.chunk * order.channels + c;
    const Index count = length(box.channels);
    std::copy_n(partials, count, to);
    std::copy_n(partials + count, count, to + order.channels);
  }
}

// The parts have the order of visit_rows(): a part has some rows of each stream, a multiple of the
// rows whose sums are f32.
template <class ReducePart>
void Staging::reduce_columns(const SummationOrder& order, const Index chunk, Box& box,
                             const ReducePart& reduce_part) const {
  const Range rows = rows_of(order, chunk);
  const Index rest = rest_of(order, chunk);
  const Index most = reduce_.box[0];
  box.inner = {0, order.inner};
  bool begins = true;
  Index row = rows.begin;
  if (order.rows_in_registers) {
    box.num_streams = 1;
    while (rows.end - row >= 8) {
      const Index end = row + std::min(most, (rows.end - row) / 8 * 8);
      box.streams[0] = {row * order.repeat, end * order.repeat};
      reduce_part(begins, false);
      begins = false;
      row = end;
    }
  }
  const Index stream = (rows.end - row) / 4;
  // Even parts, because short ones are slow.
  const Index parts = std::max<Index>(divide_up(stream, most), 1);
  const Index part = std::max<Index>(round_up(divide_up(stream, parts), 8), 8);
  for (Index at = 0;; at += part) {
    const bool ends = at + part >= stream;
    // Whole streams are neighbors.
    box.num_streams = at == 0 && ends ? 1 : box.streams.size();
    for (std::size_t i = 0; i < box.num_streams; ++i) {
      const Index first = row + static_cast<Index>(i) * stream;
      const Index end = first + (ends ? stream : at + part);
      box.streams[i] = {(first + at) * order.repeat, end * order.repeat};
    }
    // The rows and positions that the streams leave.
    if (ends) box.streams[box.num_streams - 1].end = rows.end * order.repeat + rest;
    reduce_part(begins, ends);
    begins = false;
    if (ends) return;
  }
}

// A channel's rows one after the other, and parts of long ones.
template <class ReducePart>
void Staging::reduce_planes(const SummationOrder& order, const Index chunk, Box& box,
                            const ReducePart& reduce_part) const {
  const Range rows = rows_of(order, chunk);
  for (Index row = rows.begin; row < rows.end;) {
    const Index end = std::min(row + reduce_.box[0], rows.end);
    const Index begin = row % order.segments * order.segment;
    const Range segment{begin, std::min(begin + order.segment, order.inner)};
    box.streams[0] = {row / order.segments, (end - 1) / order.segments + 1};
    for_parts(segment, reduce_.box[2], [&](const Range& part) {
      box.inner = part;
      reduce_part(row == rows.begin && part.begin == segment.begin,
                  end == rows.end && part.end == segment.end);
    });
    row = end;
  }
}

void Staging::write(const Task& task, const Tile& tile, const TileScratch& scratch) const {
  const SummationOrder& order = task.order;
  const Range rows = rows_of(order, tile.chunk);
  Box box;
  const auto write_box = [&] {
    run(task, write_, box, scratch.staging, [&](Task& part, const Tile& part_tile) {
      // Columns: the coefficients still repeat after all channels.
      if (!order.columns) part.order.channels = length(box.channels);
      part.order.repeat = 1;
      part.order.rows = part.order.chunk_rows = box.positions();
      part.order.row = length(box.channels) * length(box.inner);
      kernels_.write(part, part_tile);
    });
  };
  const auto write_range = [&](const Range& positions, const Range& inner) {
    for (Index at = positions.begin; at < positions.end; at = box.streams[0].end) {
      box.streams[0] = {at, std::min(at + write_.box[0], positions.end)};
      for (Index c = tile.channels.begin; c < tile.channels.end; c = box.channels.end) {
        box.channels = {c, std::min(c + write_.box[1], tile.channels.end)};
        for_parts(inner, write_.box[2], [&](const Range& part) {
          box.inner = part;
          write_box();
        });
      }
    }
  };
  if (order.segments > 1) {
    for (Index row = rows.begin; row < rows.end; ++row) {
      const Index position = row / order.segments;
      const Index begin = row % order.segments * order.segment;
      write_range({position, position + 1}, {begin, std::min(begin + order.segment, order.inner)});
    }
    return;
  }
  write_range({rows.begin * order.repeat, rows.end * order.repeat + rest_of(order, tile.chunk)},
              {0, order.inner});
}

}  // namespace onedsl::native
