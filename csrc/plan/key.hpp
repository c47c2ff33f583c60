#pragma once

#include "../core/problem.hpp"

namespace onedsl {

// Everything that determines a plan. Equal keys share one plan.
struct PlanKey {
  Problem problem;
  DataType statistics_type = DataType::f32;
  bool onednn = false;  // the backend: oneDNN, or onedsl's kernels
  int num_threads = 1;
  int fork_generation = 0;
};

// Returns the key of a call on the current number of threads. `given` are the inputs that the call
// passes, `outputs` those that it computes.
PlanKey make_key(const OpConfig& config, const Geometry& geometry, DataType data,
                 DataType statistics_type, InputSet given, OutputSet outputs, bool onednn = false,
                 Pass pass = Pass::both);

bool operator<(const PlanKey& a, const PlanKey& b) noexcept;  // an order, for maps

}  // namespace onedsl
