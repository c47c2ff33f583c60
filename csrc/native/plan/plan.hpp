#pragma once

#include <optional>

#include "../../core/call.hpp"
#include "../kernels/kernels.hpp"
#include "../kernels/summation_order.hpp"
#include "buffers.hpp"
#include "cpu.hpp"
#include "schedule.hpp"

namespace onedsl::native {

// What a run will do: every decision, taken before its first loop. Constant once it is made.
struct Plan {
  explicit Plan(const Kernels& all) : kernels(all) {}

  const Kernels& kernels;
  SummationOrder order;
  bool needs_sums = false;
  // Where the reduce pass stores the gradient of the activation, which the apply pass then reads.
  // The kernels of the passes are those that do so.
  std::optional<Output> stored_diff;
  PassKernels passes;
  Traffic traffic;
  Schedule schedule;
  bool neighboring_positions = false;  // see KernelArgs
  bool neighboring_channels = false;
  bool non_temporal = false;  // non-temporal stores
  Samples samples;            // of src, if their means are the first pivots
  // The loops process this many channels, and are repeated for the next ones: all channels, or
  // panels of them if columns have few rows.
  Index channels_together = 0;
  BufferSizes sizes;
};

// Return the plan of a run. Only the SummationOrder decides its bits.
Plan plan_of(const Call& call, const Pointers& memory, const Machine& machine, int num_threads);

}  // namespace onedsl::native
