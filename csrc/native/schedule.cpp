#include "schedule.hpp"

#include <algorithm>

#include "int_math.hpp"
#include "kernels.hpp"

namespace onedsl::native {
namespace {

// With all tensors in it, this much of the last cache may be filled before they drive each
// other out.
constexpr double most_filled = 0.75;

// Columns: a block's sums stay in the first two caches.
constexpr Index columns_in_block = 2048;
// Blocks are whole cache lines of any type, so that threads do not write to the same ones.
constexpr Index channels_in_line = 64;

// Planes: what a thread reads of each tensor in one go, and the least of it where the whole channel
// counts.
constexpr Index bytes_in_block = 131072;
constexpr Index least_bytes_in_block = 8192;
// Shorter stretches of memory than this are too short to be read alone.
constexpr Index short_stretch = 16384;
constexpr Index scratch_bytes = 65536;  // a thread's
// Large second caches come with last caches far away, behind a mesh, hardly faster than memory:
// what is summed had better stay in the second one until it is written, with room for more.
constexpr Index large_second_cache = Index{2} << 20;
constexpr Index parts_of_second_cache = 4;
// Shorter planes are read no faster for having been asked for while others are written.
constexpr Index least_plane_to_ask_for = 1024;  // bytes
// The second cache then holds the panel that is written, the next one, and what is left of others.
constexpr Index panels_while_asking = 3;
// Blocks for each thread at least, where channels are enough.
constexpr Index blocks_per_thread = 4;

void cut_columns(Schedule& schedule, const SummationOrder& order) {
  // The columns of a repeated row belong to all channels.
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

void cut_planes(Schedule& schedule, const SummationOrder& order, const Traffic& traffic,
                const Cache& cache) {
  const auto element_bytes = static_cast<Index>(size_of(traffic.type));
  const Index threads = schedule.threads;
  const bool by_second_cache = cache.second_bytes >= large_second_cache;
  const Index plane_bytes = order.inner * element_bytes;
  const bool may_ask = by_second_cache && plane_bytes >= least_plane_to_ask_for;
  const bool cached = may_ask ? traffic.bytes <= static_cast<double>(threads * cache.second_bytes)
                              : traffic.cache_filled <= most_filled;
  const Index channel_bytes = order.outer * plane_bytes;
  const Index most =
      scratch_bytes / (scratch_per_plane(order.lanes) * static_cast<Index>(sizeof(double)));

  Index block = bytes_in_block / plane_bytes;
  if (!cached) {
    // A thread's block stays in its part of a cache until it is written, unless that makes
    // stretches of memory too short: they matter more.
    const Index part = by_second_cache
                           ? cache.second_bytes / (parts_of_second_cache * traffic.summed)
                           : cache.bytes / (8 * std::min(threads, cache.cores));
    block = std::max(least_bytes_in_block / plane_bytes, part / channel_bytes);
  }
  if (order.pieces > 1) block = 1;  // pieces of neighbouring planes do not touch
  block = std::clamp<Index>(block, 1, most);
  block = std::min(block, std::max<Index>(order.channels / (blocks_per_thread * threads), 1));
  schedule.block = block;

  // Many images of small planes: a channel is pieces far apart. All threads then share what the
  // last cache holds of neighbouring channels, and read longer stretches.
  const Index held = cache.bytes / 2 / (traffic.summed * channel_bytes);
  const Index threads_per_chunk = divide_up(threads, order.chunks);
  const bool even = order.chunks * threads_per_chunk % threads == 0;
  if (!cached && !by_second_cache && order.pieces == 1 && block * plane_bytes < short_stretch &&
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
  schedule.prefetch_next_panel = may_ask && !cached && schedule.own_panels &&
                                 panels_while_asking * panel_bytes <= cache.second_bytes;
}

}  // namespace

int threads_for(const Index elements, const Machine& machine, const int num_threads) {
  return static_cast<int>(
      std::clamp<Index>(elements / machine.elements_per_thread, 1, std::max(num_threads, 1)));
}

Schedule schedule_for(const SummationOrder& order, const Traffic& traffic, const Machine& machine,
                      const int num_threads) {
  const Index elements = order.outer * order.channels * order.inner * order.places;
  Schedule schedule;
  schedule.threads = threads_for(elements, machine, num_threads);
  schedule.panel = order.channels;
  schedule.block = order.channels;
  if (order.columns) {
    cut_columns(schedule, order);
  } else {
    cut_planes(schedule, order, traffic, machine.cache);
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

Index units_in(const Schedule& schedule, const SummationOrder& order, const Range& panel) {
  return divide_up(panel.end - panel.begin, schedule.block) * order.partials;
}

Unit unit_of(const Schedule& schedule, const SummationOrder& order, const Range& panel,
             const Index unit) {
  const Index first = panel.begin + unit / order.partials * schedule.block;
  return {{first, std::min(first + schedule.block, panel.end)}, unit % order.partials};
}

}  // namespace onedsl::native
