#pragma once

#include "../core/ports.hpp"
#include "../core/problem.hpp"
#include "cpu.hpp"
#include "kernels.hpp"
#include "places.hpp"
#include "schedule.hpp"
#include "summation_order.hpp"

// From a Problem and its Ports to what the kernels are told. Pure functions.
namespace onedsl::native {

Variant variant_of(const Problem& problem, const Ports& ports);

// Without memory to work in.
Task task_for(const Problem& problem, const Ports& ports, const SummationOrder& order,
              const Places& places);

// What begins so many bytes of each tensor, and so many statistics, further on.
Ports advance(const Problem& problem, const Ports& ports, Index tensor_bytes, Index statistics);

Traffic traffic_of(const Problem& problem, const Ports& ports, const Cache& cache);

// Whether the results may be written by non-temporal stores.
bool may_write_non_temporal(const Problem& problem, const Ports& ports,
                            const SummationOrder& order);

// Whether the sums' pass writes diff_residual, and the other one reads it instead of diff_dst and
// dst: one tensor less is read. With planes, whose inputs stay in cache from one pass to the other,
// nothing is gained: non-temporal stores of both results are the least traffic.
bool reduce_writes_residual(const Problem& problem, const Ports& ports,
                            const SummationOrder& order);

// Whether statistics are made of src: the mean that sums need is not known before.
bool is_forward(const Problem& problem);

bool needs_sums(const Problem& problem);

}  // namespace onedsl::native
