#pragma once

#include "../core/types.hpp"
#include "cpu.hpp"
#include "summation_order.hpp"

namespace onedsl::native {

// How the work is shared out among threads, and in which order memory is gone through. It may
// depend on everything, for it changes no result: every sum has its SummationOrder.
//
// A panel of channels is summed, then written. Either every thread has panels of its own, or all
// threads share the units of one panel after the other.
struct Schedule {
  int threads = 1;
  bool own_panels = false;
  Index panel = 0;  // channels
  Index block = 0;  // channels of a unit
  // While a panel is written, memory is asked for the same thread's next one.
  bool prefetch_next_panel = false;
};

// One of the threads that share some work.
struct Worker {
  Index index = 0;
  Index workers = 1;
};

// What a thread sums, or writes, in one go: the chunks of one partial sum of a block of channels.
struct Unit {
  Range channels;
  Index partial = 0;
};

// Fewer than are offered where there are too few elements.
int threads_for(Index elements, const Machine& machine, int num_threads);

// What goes through the caches.
struct Traffic {
  DataType type = DataType::f32;
  Index summed = 0;         // tensors that are read to be summed, and then again
  double bytes = 0;         // of all tensors
  double cache_filled = 0;  // how often they fill the last cache
};

// A pure function. The tensors may be larger than what the SummationOrder sees of them: the traffic
// tells.
Schedule schedule_for(const SummationOrder& order, const Traffic& traffic, const Machine& machine,
                      int num_threads);

// The panels that a thread of the whole run takes part in, and a panel's channels.
Range panels_of(const Schedule& schedule, const SummationOrder& order, const Worker& worker);
Range channels_of(const Schedule& schedule, const SummationOrder& order, Index panel);

// Units of a panel, by its channels.
Index units_in(const Schedule& schedule, const SummationOrder& order, const Range& panel);
Unit unit_of(const Schedule& schedule, const SummationOrder& order, const Range& panel, Index unit);

}  // namespace onedsl::native
