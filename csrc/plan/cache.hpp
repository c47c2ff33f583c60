#pragma once

#include <cstddef>
#include <memory>

#include "plan.hpp"

namespace onedsl {

// Returns the plan for a key from the cache, or makes it. Throws UnsupportedError if the backend of
// the key cannot run the problem.
std::shared_ptr<const Plan> find_plan(const PlanKey& key);

struct PlanCount {
  std::size_t plans = 0;
  std::size_t bytes = 0;
};
PlanCount plan_count();

// Empties the cache. Plans that are in use elsewhere remain valid.
void clear_plans();

}  // namespace onedsl
