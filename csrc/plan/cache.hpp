#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "plan.hpp"

namespace onedsl {

// Returns the plan for a key from the cache, or makes it. Throws UnsupportedError if the backend of
// the key cannot run the problem.
std::shared_ptr<const Plan> find_plan(const PlanKey& key);

// Returns the number of plans in the cache, and their bytes.
std::pair<std::size_t, std::size_t> plan_counts();

// Empties the cache. Plans that are in use elsewhere remain valid.
void clear_plans();

}  // namespace onedsl
