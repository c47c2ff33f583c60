#pragma once

#include <cstddef>
#include <memory>

#include "plan.hpp"

namespace onedsl {

// The plan for the key, made now or at an earlier call. Throws UnsupportedError where the chosen
// backend cannot run it.
std::shared_ptr<const Plan> find_plan(const PlanKey& key);

struct PlanCount {
  std::size_t plans = 0;
  std::size_t bytes = 0;
};
PlanCount plan_count();

// Forgets all plans. Those that somebody still holds live on with them.
void clear_plans();

}  // namespace onedsl
