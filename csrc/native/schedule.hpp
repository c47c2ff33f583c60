#pragma once

#include "../core/types.hpp"
#include "cpu.hpp"
#include "kernels.hpp"
#include "summation_order.hpp"

namespace onedsl::native {

// How threads share the work, and in which order memory is traversed. It may depend on everything,
// because it changes no result: the SummationOrder decides every sum. summation_order.hpp defines
// the terms.
struct Schedule {
  int threads = 1;
  bool own_panels = false;  // each thread has panels of its own; else all threads share each panel
  Index panel = 0;          // channels
  Index block = 0;          // channels
  bool prefetch_next_panel = false;  // while a thread writes a panel
  bool out_of_cache = false;         // the tensors do not fit the second-level cache
  bool non_temporal = false;  // non-temporal stores, if the memory of the outputs allows them
};

// One of the threads that share some work.
struct Worker {
  Index index = 0;
  Index workers = 1;
};

// The memory traffic of a run.
struct Traffic {
  DataType type = DataType::f32;
  Index tensors = 0;           // that are read or written
  Index summed = 0;            // tensors that the reduce pass reads
  double bytes = 0;            // of all tensors
  bool outputs_given = false;  // see Ports
};

Schedule schedule_for(const SummationOrder& order, const Traffic& traffic, const Machine& machine,
                      int num_threads);

// Return the panels that a worker processes, alone or with the others.
Range panels_of(const Schedule& schedule, const SummationOrder& order, const Worker& worker);
Range channels_of(const Schedule& schedule, const SummationOrder& order, Index panel);

// The tiles of a panel, which is given by its channels.
Index num_tiles(const Schedule& schedule, const SummationOrder& order, const Range& panel);
Tile tile_of(const Schedule& schedule, const SummationOrder& order, const Range& panel, Index tile);

}  // namespace onedsl::native
