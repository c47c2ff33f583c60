#pragma once

#include "../core/ports.hpp"
#include "../core/problem.hpp"
#include "../core/threads.hpp"
#include "cpu.hpp"
#include "schedule.hpp"
#include "summation_order.hpp"

// onedsl's own kernels.
namespace onedsl::native {

// How a run is executed.
struct KernelInfo {
  SummationOrder order;
  Schedule schedule;
  double busy_share = 1;  // see schedule.hpp
};

// Return the info of a run (see Ports for outputs_given). The problem must have elements.
KernelInfo kernel_info(const Problem& problem, int num_threads, bool outputs_given = false,
                       const Machine& machine = this_machine());

// The results have the same bits for any threads. The problem must have elements, or be
// the apply pass of one that has, and statistics. Thread-safe. A machine other than this one is for
// tests, and must not have more instructions.
void run(const Problem& problem, const Threads& threads, const Ports& ports,
         const Machine& machine = this_machine());

}  // namespace onedsl::native
