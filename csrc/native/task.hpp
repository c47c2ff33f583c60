#pragma once

#include "../core/ports.hpp"
#include "../core/problem.hpp"
#include "cpu.hpp"
#include "kernels.hpp"
#include "schedule.hpp"
#include "summation_order.hpp"

// Pure functions that derive the input of the kernels from a Problem and its Ports.
namespace onedsl::native {

// Return the task of a run, with an empty workspace.
Task task_for(const Problem& problem, const Ports& ports, const SummationOrder& order);

Traffic traffic_of(const Problem& problem, const Ports& ports, const Cache& cache);

// Whether the reduce pass writes diff_residual, and the apply pass reads it instead of diff_dst and
// dst: one tensor less to read. Not with planes, whose inputs stay in cache from one pass to the
// next: writing both results with non-temporal stores is the least traffic there.
bool reduce_writes_residual(const Problem& problem, const Ports& ports,
                            const SummationOrder& order);

bool may_write_non_temporal(const Problem& problem, const Ports& ports,
                            const SummationOrder& order);

bool is_forward(const Problem& problem);

bool needs_sums(const Problem& problem);

}  // namespace onedsl::native
