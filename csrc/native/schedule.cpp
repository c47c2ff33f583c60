#include "schedule.hpp"

#include <algorithm>

#include "int_math.hpp"
#include "kernels.hpp"

namespace onedsl::native {
namespace {

// Tensors that together fill less of the last-level cache stay in it between the passes.
constexpr double most_filled = 0.75;

// Columns: the sums of a block stay in the first two caches.
constexpr Index columns_in_block = 2048;
// Blocks are whole cache lines of any type, so that no two threads write to the same line.
constexpr Index channels_in_line = 64;

// Planes: bytes of each tensor that a thread reads at a time.
constexpr Index bytes_in_block = 131072;
constexpr Index least_bytes_in_block = 8192;
// Contiguous reads that are shorter than this are slow.
constexpr Index short_read = 16384;
constexpr Index scratch_bytes = 65536;  // of a thread
// CPUs with large second-level caches have last-level caches behind a mesh, hardly faster than
// memory. There, a panel should stay in a fraction of the second-level cache until it is written.
constexpr Index large_l2 = Index{2} << 20;
constexpr Index l2_fraction = 4;
// For shorter planes, prefetching the next panel gains nothing.
constexpr Index least_prefetched_plane = 1024;  // bytes
// The second-level cache then holds the panel that is written, the next one, and older lines.
constexpr Index panels_while_prefetching = 3;
// At least so many blocks per thread, if there are enough channels.
constexpr Index blocks_per_thread = 4;

void schedule_columns(Schedule& schedule, const SummationOrder& order) {
  // A row of several positions has all channels.
  if (order.repeat > 1) return;
  Index block = columns_in_block / order.inner;
  if (order.chunks < schedule.threads) {
    const Index even = divide_up(order.channels * order.chunks, Index{2} * schedule.threads);
    block = std::min(block, round_up(even, channels_in_line));
  }
  if (block < order.channels) {
    schedule.block = std::max<Index>(block / order.lanes * order.lanes, 1);
  }
}

void schedule_planes(Schedule& schedule, const SummationOrder& order, const Traffic& traffic,
                     const Cache& cache) {
  const auto element_bytes = static_cast<Index>(size_of(traffic.type));
  const Index threads = schedule.threads;
  const bool by_l2 = cache.l2_bytes >= large_l2;
  const Index plane_bytes = order.inner * element_bytes;
  const bool may_prefetch = by_l2 && plane_bytes >= least_prefetched_plane;
  const bool cached = may_prefetch ? traffic.bytes <= static_cast<double>(threads * cache.l2_bytes)
                                   : traffic.cache_filled <= most_filled;
  const Index channel_bytes = order.outer * plane_bytes;
  const Index most =
      scratch_bytes / (scratch_per_plane(order.lanes) * static_cast<Index>(sizeof(double)));

  Index block = bytes_in_block / plane_bytes;
  if (!cached) {
    // A thread's block stays in the thread's share of a cache until it is written, except where
    // that makes the contiguous reads too short.
    const Index share = by_l2 ? cache.l2_bytes / (l2_fraction * traffic.summed)
                              : cache.bytes / (8 * std::min(threads, cache.cores));
    block = std::max(least_bytes_in_block / plane_bytes, share / channel_bytes);
  }
  if (order.segments > 1) block = 1;  // segments of neighboring planes are not contiguous
  block = std::clamp<Index>(block, 1, most);
  block = std::min(block, std::max<Index>(order.channels / (blocks_per_thread * threads), 1));
  schedule.block = block;

  // Many positions of small planes: a channel's planes are short and far apart. All threads then
  // share a panel that the last-level cache can hold, and read several planes contiguously.
  const Index held = cache.bytes / 2 / (traffic.summed * channel_bytes);
  const Index threads_per_chunk = divide_up(threads, order.chunks);
  const bool even = order.chunks * threads_per_chunk % threads == 0;
  if (!cached && !by_l2 && order.segments == 1 && block * plane_bytes < short_read &&
      held / threads_per_chunk > block && even) {
    schedule.block = std::min(held / threads_per_chunk, most);
    schedule.panel = schedule.block * threads_per_chunk;
    return;
  }

  // Panels of their own, unless some threads would be idle for more than a ninth of the time.
  const Index blocks = divide_up(order.channels, block);
  const Index rounds = divide_up(blocks, threads);
  schedule.own_panels = rounds * threads * 8 <= blocks * 9;
  const Index blocks_held = cache.bytes / 2 / (traffic.summed * channel_bytes * block);
  schedule.panel = schedule.own_panels ? block : block * std::max<Index>(blocks_held, 1);

  const Index panel_bytes = traffic.summed * channel_bytes * block;
  schedule.prefetch_next_panel = may_prefetch && !cached && schedule.own_panels &&
                                 panels_while_prefetching * panel_bytes <= cache.l2_bytes;
}

}  // namespace

int threads_for(const Index elements, const Machine& machine, const int num_threads) {
  return static_cast<int>(
      std::clamp<Index>(elements / machine.elements_per_thread, 1, std::max(num_threads, 1)));
}

Schedule schedule_for(const SummationOrder& order, const Traffic& traffic, const Machine& machine,
                      const int num_threads) {
  const Index elements = order.outer * order.channels * order.inner * order.repetitions;
  Schedule schedule;
  schedule.threads = threads_for(elements, machine, num_threads);
  schedule.panel = order.channels;
  schedule.block = order.channels;
  if (order.columns) {
    schedule_columns(schedule, order);
  } else {
    schedule_planes(schedule, order, traffic, machine.cache);
  }
  return schedule;
}

Range panels_of(const Schedule& schedule, const SummationOrder& order, const Worker& worker) {
  const Index panels = divide_up(order.channels, schedule.panel);
  return schedule.own_panels ? share_of(panels, worker.index, worker.workers) : Range{0, panels};
}

Range channels_of(const Schedule& schedule, const SummationOrder& order, const Index panel) {
  const Index first = panel * schedule.panel;
  return {first, std::min(first + schedule.panel, order.channels)};
}

Index num_work_items(const Schedule& schedule, const SummationOrder& order, const Range& panel) {
  return divide_up(panel.end - panel.begin, schedule.block) * order.partials;
}

WorkItem work_item(const Schedule& schedule, const SummationOrder& order, const Range& panel,
                   const Index item) {
  const Index first = panel.begin + item / order.partials * schedule.block;
  return {{first, std::min(first + schedule.block, panel.end)}, item % order.partials};
}

}  // namespace onedsl::native
