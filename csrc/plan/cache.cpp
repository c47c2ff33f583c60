#include "cache.hpp"

#include <pthread.h>

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "../core/errors.hpp"

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
          static_cast<std::int64_t>(p.statistics), static_cast<std::int64_t>(p.spread),
          std::int64_t{p.optional_tensors.bits()}, std::int64_t{p.wanted.bits()},
          static_cast<std::int64_t>(key.statistics_type), static_cast<std::int64_t>(key.backend),
          std::int64_t{key.num_threads}, std::int64_t{key.fork_generation}}) {
      h = (h ^ static_cast<std::size_t>(part)) * 0x9e3779b97f4a7c15U;
      h ^= h >> 32;
    }
    return h;
  }
};

// What came of asking for a plan: the plan, or why there is none.
struct Answer {
  std::shared_ptr<const Plan> plan;
  std::optional<UnsupportedError> refusal;

  std::shared_ptr<const Plan> get() const {
    if (refusal) throw UnsupportedError(*refusal);
    return plan;
  }
};

// A process that sees ever new shapes must not keep a plan for each of them for ever.
constexpr std::size_t most_plans = 4096;
constexpr std::size_t most_bytes = std::size_t{64} << 20;

std::mutex mutex;
std::unordered_map<PlanKey, Answer, Hash> answers;
std::size_t held_bytes = 0;

void forget_all() {
  answers.clear();
  held_bytes = 0;
}

// A fork while another thread holds the mutex would leave the child with it locked.
[[maybe_unused]] const int registered =
    pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, [] { mutex.unlock(); });

Answer ask(const PlanKey& key) {
  try {
    return {make_plan(key), std::nullopt};
  } catch (const UnsupportedError& error) {
    return {nullptr, error};
  }
}

}  // namespace

std::shared_ptr<const Plan> find_plan(const PlanKey& key) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = answers.find(key);
    if (found != answers.end()) return found->second.get();
  }
  Answer answer = ask(key);  // slow, and needs no lock
  const std::size_t bytes =
      sizeof(PlanKey) + sizeof(Answer) + (answer.plan ? answer.plan->bytes() : 0);
  const std::lock_guard<std::mutex> lock(mutex);
  if (answers.size() >= most_plans || held_bytes + bytes > most_bytes) forget_all();
  const auto [place, is_new] = answers.emplace(key, std::move(answer));
  if (is_new) held_bytes += bytes;
  return place->second.get();
}

PlanCount plan_count() {
  const std::lock_guard<std::mutex> lock(mutex);
  return {answers.size(), held_bytes};
}

void clear_plans() {
  const std::lock_guard<std::mutex> lock(mutex);
  forget_all();
}

}  // namespace onedsl
