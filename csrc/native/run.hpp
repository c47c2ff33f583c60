#pragma once

#include "../core/ports.hpp"
#include "../core/problem.hpp"
#include "cpu.hpp"

// onedsl's own kernels.
namespace onedsl::native {

// The results are the same bits for any num_threads >= 1: see order.hpp. The problem has elements.
// May be called by many threads at once. Another machine than this one is for tests: it must not
// have more instructions.
void run(const Problem& problem, int num_threads, const Ports& ports,
         const Machine& machine = this_machine());

}  // namespace onedsl::native
