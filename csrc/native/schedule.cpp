#include "schedule.hpp"

#include <algorithm>

#include "int_math.hpp"
#include "kernels.hpp"

namespace onedsl::native {
namespace {

// Tensors that together fill less of the last-level cache stay in it between the passes.
constexpr double most_filled = 0.75;

// Columns: whole rows are read fastest, since they are contiguous. In wider blocks, the sums would
// not stay in the second-level cache.
constexpr Index columns_in_block = 16384;
// Blocks are whole cache lines of any type, so that no two threads write to the same line.
constexpr Index channels_in_line = 64;

// Planes: bytes of each tensor that a thread reads at a time.
constexpr Index bytes_in_block = 131072;
constexpr Index least_bytes_in_block = 8192;
// Contiguous reads that are shorter than this are slow.
constexpr Index short_read = 16384;
constexpr Index scratch_bytes = 65536;  // of a thread
// From this size on, the second-level cache can hold the panel that is written and the next one.
constexpr Index medium_l2 = Index{1} << 20;
// With large second-level caches (see cpu.hpp), a panel should stay in a fraction of the
// second-level cache until it is written, whether or not the next one is prefetched.
constexpr Index l2_fraction = 4;
// With large second-level caches: for shorter planes, prefetching the next panel gains nothing, and
// the cache holds older lines besides the two panels.
constexpr Index least_prefetched_plane = 1024;  // bytes
constexpr Index panels_in_large_l2 = 3;
constexpr Index panels_in_medium_l2 = 2;
// The least number of blocks per thread, if there are enough channels.
constexpr Index blocks_per_thread = 4;

// Non-temporal stores are used from this fill of the last-level cache on. They save reading the
// output's lines, but the next operator then reads the output from memory: chains of layers gain
// only where the tensors of one layer fill so much of the cache. On CPUs with large second-level
// caches, they are also used for memory that the caller provides, where the tensors exceed the
// second-level caches of the threads. Memory that has just been allocated is often still in cache.
constexpr double non_temporal_from = 0.5;

// Return whether the tensors fit the second-level caches of some threads.
bool fits_l2(const Traffic& traffic, const Cache& cache, const Index threads) {
  return traffic.bytes <= static_cast<double>(threads * cache.l2_bytes);
}

// Return the size of the tensors as a multiple of the last-level cache.
double cache_filled(const Traffic& traffic, const Cache& cache) {
  return traffic.bytes / static_cast<double>(cache.bytes);
}

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
  const Index plane_bytes = order.inner * element_bytes;
  const Index channel_bytes = order.outer * plane_bytes;
  const bool large = cache.l2_bytes >= large_l2;
  const bool long_in_large = large && plane_bytes >= least_prefetched_plane;
  const bool cached = long_in_large ? fits_l2(traffic, cache, threads)
                                    : cache_filled(traffic, cache) <= most_filled;
  const Index most =
      scratch_bytes / (scratch_per_plane(order.lanes) * static_cast<Index>(sizeof(double)));

  // A thread's block of each tensor stays in `share` bytes of a cache until it is written, except
  // where that makes the contiguous reads too short.
  const auto block_in = [&](const Index share) {
    Index block = cached ? bytes_in_block / plane_bytes
                         : std::max(least_bytes_in_block / plane_bytes, share / channel_bytes);
    if (order.segments > 1) block = 1;  // segments of neighboring planes are not contiguous
    block = std::clamp<Index>(block, 1, most);
    return std::min(block, std::max<Index>(order.channels / (blocks_per_thread * threads), 1));
  };
  // Panels of their own, unless some threads would be idle for more than a ninth of the time.
  const auto is_balanced = [&](const Index block) {
    const Index blocks = divide_up(order.channels, block);
    return divide_up(blocks, threads) * threads * 8 <= blocks * 9;
  };

  const Index block_in_l2 = block_in(cache.l2_bytes / (l2_fraction * traffic.summed));
  const Index panel_bytes = traffic.summed * channel_bytes * block_in_l2;
  const bool can_prefetch = !cached && is_balanced(block_in_l2);
  // A medium cache has no room for lines of further tensors that are read while a panel is written.
  const bool prefetches_in_medium = can_prefetch && !large && cache.l2_bytes >= medium_l2 &&
                                    traffic.tensors == traffic.summed + 1 &&
                                    panels_in_medium_l2 * panel_bytes <= cache.l2_bytes;
  schedule.prefetch_next_panel =
      prefetches_in_medium ||
      (can_prefetch && long_in_large && panels_in_large_l2 * panel_bytes <= cache.l2_bytes);

  const bool by_l2 = large || prefetches_in_medium;
  const Index block =
      by_l2 ? block_in_l2 : block_in(cache.bytes / (8 * std::min(threads, cache.cores)));
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

  schedule.own_panels = is_balanced(block);
  const Index blocks_held = cache.bytes / 2 / (traffic.summed * channel_bytes * block);
  schedule.panel = schedule.own_panels ? block : block * std::max<Index>(blocks_held, 1);
}

}  // namespace

Schedule schedule_for(const SummationOrder& order, const Traffic& traffic, const Machine& machine,
                      const int num_threads) {
  const Index elements = order.outer * order.channels * order.inner;
  const Cache& cache = machine.cache;
  Schedule schedule;
  schedule.threads = static_cast<int>(
      std::clamp<Index>(elements / machine.min_elements_per_thread, 1, std::max(num_threads, 1)));
  schedule.panel = order.channels;
  schedule.block = order.channels;
  if (order.columns) {
    schedule_columns(schedule, order);
  } else {
    schedule_planes(schedule, order, traffic, cache);
  }
  const bool given_out_of_l2 = traffic.outputs_given && cache.l2_bytes >= large_l2 &&
                               !fits_l2(traffic, cache, schedule.threads);
  schedule.non_temporal = given_out_of_l2 || cache_filled(traffic, cache) > non_temporal_from;
  schedule.out_of_cache = !fits_l2(traffic, cache, 1);
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

Index num_tiles(const Schedule& schedule, const SummationOrder& order, const Range& panel) {
  return divide_up(panel.end - panel.begin, schedule.block) * order.chunks;
}

Tile tile_of(const Schedule& schedule, const SummationOrder& order, const Range& panel,
             const Index tile) {
  const Index first = panel.begin + tile / order.chunks * schedule.block;
  return {{first, std::min(first + schedule.block, panel.end)}, tile % order.chunks};
}

}  // namespace onedsl::native
