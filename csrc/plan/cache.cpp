#include "cache.hpp"

#include <pthread.h>

#include <map>
#include <mutex>
#include <utility>

#include "../core/no_destructor.hpp"

namespace onedsl {
namespace {

// Limits for processes whose shapes keep changing. The cache is emptied when one is reached.
constexpr std::size_t max_plans = 4096;
constexpr std::size_t max_bytes = std::size_t{64} << 20;

using Plans = std::map<PlanKey, std::shared_ptr<const Plan>>;

struct Cache {
  std::mutex mutex;
  Plans plans;
  std::size_t bytes = 0;

  // Empties the cache. The caller must destroy the plans after it has released the mutex: their
  // destructors enter oneDNN, which waits for a fork, which waits for the mutex.
  [[nodiscard]] Plans take_all() {
    bytes = 0;
    return std::exchange(plans, {});
  }
};

Cache& cache() {
  static NoDestructor<Cache> instance;
  return *instance;
}

// Without these handlers a child could inherit the mutex locked by a thread that it does not have.
[[maybe_unused]] const int mutex_fork_handlers = pthread_atfork(
    [] { cache().mutex.lock(); }, [] { cache().mutex.unlock(); }, [] { cache().mutex.unlock(); });

}  // namespace

std::shared_ptr<const Plan> find_plan(const PlanKey& key) {
  Cache& c = cache();
  {
    const std::lock_guard<std::mutex> lock(c.mutex);
    const auto found = c.plans.find(key);
    if (found != c.plans.end()) return found->second;
  }
  const auto plan = std::make_shared<const Plan>(key);  // slow with oneDNN, so without the mutex
  const std::size_t bytes = sizeof(PlanKey) + plan->bytes();
  Plans removed;  // destroyed after `lock`
  const std::lock_guard<std::mutex> lock(c.mutex);
  if (c.plans.size() >= max_plans || c.bytes + bytes > max_bytes) removed = c.take_all();
  const auto [entry, is_new] = c.plans.try_emplace(key, plan);
  if (is_new) c.bytes += bytes;
  return entry->second;
}

std::pair<std::size_t, std::size_t> plan_counts() {
  Cache& c = cache();
  const std::lock_guard<std::mutex> lock(c.mutex);
  return {c.plans.size(), c.bytes};
}

void clear_plans() {
  Cache& c = cache();
  Plans removed;  // destroyed after `lock`
  const std::lock_guard<std::mutex> lock(c.mutex);
  removed = c.take_all();
}

}  // namespace onedsl
