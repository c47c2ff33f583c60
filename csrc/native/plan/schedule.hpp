#pragma once

#include <algorithm>

#include "../../core/threads.hpp"
#include "../../core/types.hpp"
#include "../kernels/kernels.hpp"
#include "../kernels/summation_order.hpp"
#include "cpu.hpp"
#include "int_math.hpp"

namespace onedsl::native {

// How workers share the work, and in which order memory is traversed. It may depend on everything,
// because it changes no result: the SummationOrder decides every sum. summation_order.hpp defines
// the terms.
struct Schedule {
  int workers = 1;  // at most, of the loops of the call
  Index own = 0;    // of the first channels, each worker has a share of its own
  Index panel = 0;  // channels of a panel of the other channels, which all workers share
  Index block = 0;  // channels
  bool prefetch_next_panel = false;  // while a worker writes a panel of its own
  bool exceeds_l2 = false;           // the tensors do not fit the second-level cache
  bool non_temporal = false;  // non-temporal stores, if the memory of the outputs allows them
};

// The memory traffic of a run: how many tensors it reads and writes.
struct Traffic {
  DataType type = DataType::f32;
  Index tensors = 0;                 // of the run
  Index reduced = 0;                 // of the reduce pass
  Index applied = 0;                 // of the apply pass
  double bytes = 0;                  // of the run's tensors
  bool cold_outputs = false;         // see Pointers
  bool neighboring_channels = true;  // see KernelArgs
};

Schedule schedule_for(const SummationOrder& order, const Traffic& traffic, const Machine& machine,
                      int num_threads);

// Return the part of the threads' time in which they have work, by the number of elements that are
// read and written.
double busy_share(const Schedule& schedule, const SummationOrder& order, const Traffic& traffic,
                  int num_threads);

// ---- The shares of a worker ----

// Return the channels whose results this worker alone computes.
Range own_channels(const Schedule& schedule, const Worker& worker);

// The panels that all workers share.
Index num_shared_panels(const Schedule& schedule, const SummationOrder& order);
Range shared_panel(const Schedule& schedule, const SummationOrder& order, Index panel);

// Return the channels for which this worker adds the sums of all chunks.
Range finished_channels(const Range& channels, const Worker& worker);

Range rows_of(const SummationOrder& order, Index chunk);

namespace detail {

// Calls visit(channels) for blocks of the channels.
template <class Visit>
void for_blocks(const Range& channels, const Index block, const Visit& visit) {
  for (Index c = channels.begin; c < channels.end; c += block) {
    visit(Range{c, std::min(c + block, channels.end)});
  }
}

// Calls visit(slow, fast) for a worker's share of pairs of an index below `slow` and one below
// `fast`, which is a range; the last ones first if `reverse`.
template <class Visit>
void for_pairs(const Index slow, const Index fast, const Worker& worker, const bool reverse,
               const Visit& visit) {
  const Range share = share_of(slow * fast, worker.index, worker.workers);
  if (share.begin == share.end) return;
  const Index first = share.begin / fast;
  const Index last = (share.end - 1) / fast;
  for (Index n = 0; n <= last - first; ++n) {
    const Index i = reverse ? last - n : first + n;
    visit(i,
          Range{std::max(share.begin - i * fast, Index{0}), std::min(share.end - i * fast, fast)});
  }
}

}  // namespace detail

// Columns: a chunk is divided between workers at multiples of this many channels, whole cache lines
// of any type. Rows of several positions are not divided.
constexpr Index divided_channels = 32;

// Columns: return the number of parts of a chunk.
inline Index divided_parts(const SummationOrder& order, const Index channels) {
  return order.repeat > 1 ? 1 : divide_up(channels, divided_channels);
}

// Calls visit(tile) for the tiles of a panel that a worker sums.
template <class Visit>
void for_summed_tiles(const Schedule& schedule, const SummationOrder& order, const Range& panel,
                      const Worker& worker, const Visit& visit) {
  const Index channels = panel.length();
  if (order.columns) {
    const Index unit = order.repeat > 1 ? channels : divided_channels;
    detail::for_pairs(order.chunks, divided_parts(order, channels), worker, false,
                      [&](const Index chunk, const Range& units) {
                        const Range some{panel.begin + units.begin * unit,
                                         std::min(panel.begin + units.end * unit, panel.end)};
                        detail::for_blocks(some, schedule.block, [&](const Range& block) {
                          visit(Tile{block, rows_of(order, chunk), chunk});
                        });
                      });
    return;
  }
  const Index block = schedule.block;
  detail::for_pairs(divide_up(channels, block), order.chunks, worker, false,
                    [&](const Index i, const Range& chunks) {
                      const Index first = panel.begin + i * block;
                      const Range some{first, std::min(first + block, panel.end)};
                      for (Index k = chunks.begin; k < chunks.end; ++k) {
                        visit(Tile{some, rows_of(order, k), k});
                      }
                    });
}

// Columns: a tile that is written has about this many elements.
constexpr Index elements_written = 524288;

// Calls visit(tile) for the tiles of a panel that a worker writes, which need not be those that
// it sums. In reverse, because what was read last is still in cache.
template <class Visit>
void for_written_tiles(const Schedule& schedule, const SummationOrder& order, const Range& panel,
                       const Worker& worker, const Visit& visit) {
  if (order.columns) {
    const Range rows = share_of(order.rows, worker.index, worker.workers);
    const Index at_a_time = std::max<Index>(elements_written / order.row, 1);
    for (Index end = rows.end; end > rows.begin;) {
      const Range some{std::max(end - at_a_time, rows.begin), end};
      detail::for_blocks(panel, schedule.block,
                         [&](const Range& block) { visit(Tile{block, some}); });
      end = some.begin;
    }
    return;
  }
  const Index block = schedule.block;
  detail::for_pairs(divide_up(panel.length(), block), order.rows, worker, true,
                    [&](const Index i, const Range& rows) {
                      const Index first = panel.begin + i * block;
                      visit(Tile{{first, std::min(first + block, panel.end)}, rows});
                    });
}

}  // namespace onedsl::native
