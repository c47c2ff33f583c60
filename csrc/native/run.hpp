#pragma once

#include "../core/call.hpp"
#include "../core/threads.hpp"
#include "kernels/summation_order.hpp"
#include "plan/cpu.hpp"
#include "plan/schedule.hpp"

// onedsl's own kernels.
namespace onedsl::native {

// How a run is executed.
struct KernelInfo {
  SummationOrder order;
  Schedule schedule;
  double busy_share = 1;  // see schedule.hpp
};

// Return the info of a run (see Pointers for cold_outputs). The tensors must have elements.
KernelInfo kernel_info(const Call& call, int num_threads, bool cold_outputs = false,
                       const Machine& machine = this_machine());

// Run a checked call with f32 statistics on this memory, and return how many of the threads had
// work. The results have the same bits for any threads. The tensors must have elements, or the call
// be the apply pass of a batch that has, and statistics. Thread-safe. A machine other than this one
// is for tests, and must not have more instructions.
int run(const Call& call, const Pointers& memory, const Threads& threads,
        const Machine& machine = this_machine());

}  // namespace onedsl::native
