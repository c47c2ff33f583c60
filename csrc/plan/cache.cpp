#include "cache.hpp"

#include <pthread.h>

#include <cstdint>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "../core/no_destructor.hpp"

namespace onedsl {
namespace {

struct Hash {
  std::size_t operator()(const PlanKey& key) const noexcept {
    const Problem& p = key.problem;
    std::size_t h = std::hash<double>{}(p.attributes.epsilon);
    // The loops have no part: what differs in them alone is rare.
    for (const std::int64_t part :
         {p.geometry.outer, p.geometry.channels, p.geometry.inner,
          static_cast<std::int64_t>(p.operation), static_cast<std::int64_t>(p.data),
          static_cast<std::int64_t>(p.statistics), static_cast<std::int64_t>(p.variance_kind),
          std::int64_t{p.optional_tensors.bits()}, std::int64_t{p.outputs.bits()},
          static_cast<std::int64_t>(p.pass), static_cast<std::int64_t>(key.statistics_type),
          static_cast<std::int64_t>(key.backend), std::int64_t{key.num_threads},
          std::int64_t{key.fork_generation}}) {
      h = (h ^ static_cast<std::size_t>(part)) * 0x9e3779b97f4a7c15U;
      h ^= h >> 32;
    }
    return h;
  }
};

// A process that sees ever new shapes must not keep a plan for each of them for ever.
constexpr std::size_t most_plans = 4096;
constexpr std::size_t most_bytes = std::size_t{64} << 20;

struct Cache {
  std::mutex mutex;
  std::unordered_map<PlanKey, std::shared_ptr<const Plan>, Hash> plans;
  std::size_t held_bytes = 0;

  // To be destroyed when the mutex is free again: that enters oneDNN, which waits for forks, which
  // wait for the mutex.
  [[nodiscard]] auto take_all() {
    held_bytes = 0;
    return std::exchange(plans, {});
  }
};

Cache& cache() {
  static NoDestructor<Cache> made;
  return *made;
}

// A fork while another thread holds the mutex would leave the child with it locked.
[[maybe_unused]] const int registered = pthread_atfork(
    [] { cache().mutex.lock(); }, [] { cache().mutex.unlock(); }, [] { cache().mutex.unlock(); });

}  // namespace

std::shared_ptr<const Plan> find_plan(const PlanKey& key) {
  Cache& c = cache();
  {
    const std::lock_guard<std::mutex> lock(c.mutex);
    const auto found = c.plans.find(key);
    if (found != c.plans.end()) return found->second;
  }
  std::shared_ptr<const Plan> plan = make_plan(key);  // slow, and needs no lock
  const std::size_t bytes = sizeof(PlanKey) + plan->bytes();
  decltype(c.plans) forgotten;
  const std::lock_guard<std::mutex> lock(c.mutex);
  if (c.plans.size() >= most_plans || c.held_bytes + bytes > most_bytes) {
    forgotten = c.take_all();
  }
  const auto [place, is_new] = c.plans.try_emplace(key, plan);
  if (is_new) c.held_bytes += bytes;
  return place->second;
}

PlanCount plan_count() {
  Cache& c = cache();
  const std::lock_guard<std::mutex> lock(c.mutex);
  return {c.plans.size(), c.held_bytes};
}

void clear_plans() {
  Cache& c = cache();
  decltype(c.plans) forgotten;
  const std::lock_guard<std::mutex> lock(c.mutex);
  forgotten = c.take_all();
}

}  // namespace onedsl
