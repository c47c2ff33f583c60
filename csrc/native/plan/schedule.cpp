#include "schedule.hpp"

#include <algorithm>

namespace onedsl::native {
namespace {

// Tensors that together fill less of the last-level cache stay in it between the passes.
constexpr double max_filled = 0.75;

// Columns: whole rows are read fastest, since they are contiguous. In wider blocks, the sums would
// not stay in the second-level cache.
constexpr Index columns_in_block = 16384;

// Planes: bytes of each tensor that a thread reads at a time.
constexpr Index bytes_in_block = 131072;
constexpr Index min_bytes_in_block = 8192;
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
constexpr Index min_prefetched_plane = 1024;  // bytes
constexpr Index panels_in_large_l2 = 3;
constexpr Index panels_in_medium_l2 = 2;
// The least number of blocks per thread, if there are enough channels.
constexpr Index blocks_per_thread = 4;
// Non-temporal stores are used from these fills of the last-level cache on. They save reading the
// output's lines, but the next operator then reads the output from memory: training steps gain only
// where the tensors of one layer exceed the cache. Memory that the caller provides is cold, so the
// stores gain earlier there; on CPUs with large second-level caches, they gain where the tensors
// exceed those of the threads. Memory that has just been allocated is often still in cache.
constexpr double non_temporal_from = 1;
constexpr double cold_non_temporal_from = 0.5;

// Threads may be idle for at most a ninth of the time.
constexpr double min_evenness = 8.0 / 9;

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
  const Index block = columns_in_block / order.inner;
  if (order.repeat == 1 && block < order.channels) {
    schedule.block = std::max<Index>(block / order.lanes * order.lanes, 1);
  }
}

// Return the part of the workers' time that is used if each of them processes whole items.
double evenness(const Index items, const Index workers) {
  return static_cast<double>(items) / static_cast<double>(divide_up(items, workers) * workers);
}

// Return the number of channels of a shared panel, of up to `most` that a cache holds. All channels
// if the tiles of so few are no share for each worker.
Index shared_panel_channels(const Index channels, const Index most, const Index chunks,
                            const Index workers) {
  if (most >= channels) return channels;
  Index best = most;
  for (Index few = most; few > most / 2; --few) {
    if (evenness(few * chunks, workers) > evenness(best * chunks, workers)) best = few;
  }
  return evenness(best * chunks, workers) < min_evenness / 2 ? channels : best;
}

// What the schedule of planes depends on.
struct Planes {
  const SummationOrder& order;
  const Cache& cache;
  Index threads = 0;
  Index reduced = 0;              // tensors of the reduce pass, at least one
  Index plane_bytes = 0;          // of a tensor
  Index channel_bytes = 0;        // of a tensor
  Index reduced_bytes = 0;        // of a channel of the tensors of the reduce pass
  Index held = 0;                 // channels that half of the last-level cache holds
  Index max_block = 0;            // channels
  bool large_l2 = false;          // the second-level caches are large
  bool long_in_large_l2 = false;  // and planes so long that prefetching the next panel may gain
  bool cached = false;            // the tensors stay in cache between the passes
  bool is_even = false;           // each thread can have as many channels of its own as another
};

Planes planes_of(const Schedule& schedule, const SummationOrder& order, const Traffic& traffic,
                 const Cache& cache) {
  Planes planes{order, cache};
  planes.threads = schedule.workers;
  // Nothing is summed for diff_src alone with frozen statistics.
  planes.reduced = std::max<Index>(traffic.reduced, 1);
  planes.plane_bytes = order.inner * static_cast<Index>(size_of(traffic.type));
  planes.channel_bytes = order.outer * planes.plane_bytes;
  planes.reduced_bytes = planes.reduced * planes.channel_bytes;
  planes.held = cache.bytes / 2 / planes.reduced_bytes;
  planes.max_block =
      scratch_bytes / (scratch_per_plane(order.lanes) * static_cast<Index>(sizeof(double)));
  planes.large_l2 = cache.l2_bytes >= large_l2;
  planes.long_in_large_l2 = planes.large_l2 && planes.plane_bytes >= min_prefetched_plane;
  planes.cached = planes.long_in_large_l2 ? fits_l2(traffic, cache, planes.threads)
                                          : cache_filled(traffic, cache) <= max_filled;
  planes.is_even = evenness(order.channels, planes.threads) >= min_evenness;
  return planes;
}

// Return the channels of a block. It stays in `share` bytes of a cache until it is written, except
// where that makes the contiguous reads too short.
Index block_in(const Planes& planes, const Index share) {
  const SummationOrder& order = planes.order;
  if (order.segments > 1) return 1;  // segments of neighboring planes are not contiguous
  const Index block = planes.cached ? bytes_in_block / planes.plane_bytes
                                    : std::max(min_bytes_in_block / planes.plane_bytes,
                                               share / planes.channel_bytes);
  return std::min(std::clamp<Index>(block, 1, planes.max_block),
                  std::max<Index>(order.channels / (blocks_per_thread * planes.threads), 1));
}

// Many positions of small planes: a channel's planes are short and far apart. All threads then
// share a panel that the last-level cache can hold, and read several planes contiguously. Returns
// whether they do.
bool share_short_planes(Schedule& schedule, const Planes& planes) {
  const SummationOrder& order = planes.order;
  const Index threads_per_chunk = divide_up(planes.threads, order.chunks);
  const Index block = planes.held / threads_per_chunk;
  const bool are_short = schedule.block * planes.plane_bytes < short_read && order.segments == 1;
  const bool even = order.chunks * threads_per_chunk % planes.threads == 0;
  if (planes.cached || !are_short || !even || block <= schedule.block) return false;
  schedule.block = std::min(block, planes.max_block);
  schedule.panel = schedule.block * threads_per_chunk;
  return true;
}

// Each thread has as many channels of its own as another, and all share the others, if a cache
// holds a channel for each thread; otherwise they share all channels.
void share_channels(Schedule& schedule, const Planes& planes) {
  const SummationOrder& order = planes.order;
  const Index threads = planes.threads;
  if (planes.is_even) {
    schedule.own = order.channels;
    return;
  }
  if (order.chunks > 1 && planes.held >= threads) {
    schedule.own = order.channels / threads * threads;
  }
  const Index held_in_l2 = threads * planes.cache.l2_bytes / (l2_fraction * planes.reduced_bytes);
  const Index blocks_held = std::max(planes.held, held_in_l2) / schedule.block;
  const Index shared = order.channels - schedule.own;
  schedule.panel = schedule.block * shared_panel_channels(divide_up(shared, schedule.block),
                                                          std::max<Index>(blocks_held, 1),
                                                          order.chunks, threads);
}

void schedule_planes(Schedule& schedule, const SummationOrder& order, const Traffic& traffic,
                     const Cache& cache) {
  const Planes planes = planes_of(schedule, order, traffic, cache);
  const Index block_in_l2 = block_in(planes, cache.l2_bytes / (l2_fraction * planes.reduced));
  const Index panel_bytes = planes.reduced_bytes * block_in_l2;
  const bool can_prefetch =
      traffic.reduced > 0 && !planes.cached && planes.is_even && traffic.neighboring_channels;
  // A medium cache has no room for lines of further tensors that are read while a panel is written.
  const bool prefetches_in_medium =
      can_prefetch && !planes.large_l2 && cache.l2_bytes >= medium_l2 &&
      traffic.tensors == traffic.reduced + 1 && panels_in_medium_l2 * panel_bytes <= cache.l2_bytes;
  const bool prefetches_in_large =
      can_prefetch && planes.long_in_large_l2 && panels_in_large_l2 * panel_bytes <= cache.l2_bytes;
  schedule.prefetch_next_panel = prefetches_in_medium || prefetches_in_large;

  if (planes.large_l2 || prefetches_in_medium) {
    schedule.block = block_in_l2;
  } else {
    schedule.block = block_in(planes, cache.bytes / (8 * std::min(planes.threads, cache.cores)));
    if (share_short_planes(schedule, planes)) return;
  }
  share_channels(schedule, planes);
}

int workers_for(const Index elements, const Machine& machine, const int num_threads) {
  const Index parallel_from =
      machine.parallel_from + machine.parallel_from_per_thread * (num_threads - 2);
  if (num_threads < 2 || elements < parallel_from) return 1;
  return static_cast<int>(
      std::clamp<Index>(elements / machine.min_elements_per_worker, 2, num_threads));
}

}  // namespace

Schedule schedule_for(const SummationOrder& order, const Traffic& traffic, const Machine& machine,
                      const int num_threads) {
  const Index elements = order.outer * order.channels * order.inner;
  const Cache& cache = machine.cache;
  Schedule schedule;
  schedule.workers = workers_for(elements, machine, num_threads);
  schedule.panel = order.channels;
  schedule.block = order.channels;
  if (order.columns) {
    schedule_columns(schedule, order);
  } else {
    schedule_planes(schedule, order, traffic, cache);
  }
  const bool cold_out_of_l2 = traffic.cold_outputs && cache.l2_bytes >= large_l2 &&
                              !fits_l2(traffic, cache, schedule.workers);
  const double from = traffic.cold_outputs ? cold_non_temporal_from : non_temporal_from;
  schedule.non_temporal = cold_out_of_l2 || cache_filled(traffic, cache) > from;
  schedule.exceeds_l2 = !fits_l2(traffic, cache, 1);
  return schedule;
}

// ---- The shares of a worker ----

Range own_channels(const Schedule& schedule, const Worker& worker) {
  return share_of(schedule.own, worker.index, worker.workers);
}

Index num_shared_panels(const Schedule& schedule, const SummationOrder& order) {
  return divide_up(order.channels - schedule.own, schedule.panel);
}

Range shared_panel(const Schedule& schedule, const SummationOrder& order, const Index panel) {
  const Index first = schedule.own + panel * schedule.panel;
  return {first, std::min(first + schedule.panel, order.channels)};
}

Range finished_channels(const Range& channels, const Worker& worker) {
  // No two workers read the same lines of partial sums.
  constexpr Index together = 16;
  const Index count = channels.length();
  const Range some = share_of(divide_up(count, together), worker.index, worker.workers);
  return {channels.begin + some.begin * together,
          std::min(channels.begin + some.end * together, channels.end)};
}

Range rows_of(const SummationOrder& order, const Index chunk) {
  const Index first = chunk * order.chunk_rows;
  return {std::min(first, order.rows), std::min(first + order.chunk_rows, order.rows)};
}

double busy_share(const Schedule& schedule, const SummationOrder& order, const Traffic& traffic,
                  const int num_threads) {
  // The time of a loop is that of the longest share, in whole items.
  const auto time = [&](const Index items, const Index channels, const Index tensors) {
    const double longest = 1 / (evenness(items, schedule.workers) * schedule.workers);
    return longest * static_cast<double>(channels) * static_cast<double>(tensors);
  };
  double all = 0;
  if (schedule.own > 0) {
    all += time(schedule.own, schedule.own, traffic.reduced + traffic.applied);
  }
  const auto add_panels = [&](const Index panels, const Index channels) {
    if (panels == 0 || channels == 0) return;
    const Index blocks = divide_up(channels, schedule.block);
    const Index summed =
        order.columns ? order.chunks * divided_parts(order, channels) : blocks * order.chunks;
    const Index written = order.columns ? order.rows : blocks * order.rows;
    all += static_cast<double>(panels) *
           (time(summed, channels, traffic.reduced) + time(written, channels, traffic.applied));
  };
  const Index shared = order.channels - schedule.own;
  add_panels(shared / schedule.panel, schedule.panel);
  add_panels(1, shared % schedule.panel);
  const auto least = static_cast<double>(order.channels * (traffic.reduced + traffic.applied)) /
                     std::max(num_threads, 1);
  return least / all;
}

}  // namespace onedsl::native
