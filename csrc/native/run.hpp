#pragma once

#include "../core/ports.hpp"
#include "../core/problem.hpp"
#include "cpu.hpp"
#include "schedule.hpp"
#include "summation_order.hpp"

// onedsl's own kernels.
namespace onedsl::native {

// How the work is cut into pieces, for people to look at.
struct KernelInfo {
  Index groups = 1;  // of channels with statistics of their own, each a block of this order
  SummationOrder order;
  Schedule schedule;
  bool non_temporal = false;  // results go past the caches
};

// Of a run whose results are not written over its inputs. The problem has elements.
KernelInfo kernel_info(const Problem& problem, int num_threads,
                       const Machine& machine = this_machine());

// The results are the same bits for any num_threads >= 1: see summation_order.hpp. The problem has
// elements, or is the second pass of one that has, and statistics. May be called by many threads at
// once. Another machine than this one is for tests: it must not have more instructions.
void run(const Problem& problem, int num_threads, const Ports& ports,
         const Machine& machine = this_machine());

}  // namespace onedsl::native
