#include "plan.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "narrow.hpp"
#include "native/native.hpp"
#include "onednn/backend.hpp"
#include "onednn/engine.hpp"

namespace onedsl {
namespace {

class OneDNNPlan final : public Plan {
 public:
  explicit OneDNNPlan(const PlanKey& key)
      : Plan(key), backend_(key.problem, key.num_threads), implementation_(describe()) {}
  const char* backend() const noexcept override { return "onednn"; }
  std::string implementation() const override { return implementation_; }

 private:
  static std::string describe() {
    const onednn::Version v = onednn::version();
    return "oneDNN " + std::to_string(v.major) + "." + std::to_string(v.minor) + "." +
           std::to_string(v.patch) + " BatchNormTrainingBackward, " + onednn::cpu_isa();
  }
  void run(const Arguments& arguments) const override { backend_.run(arguments); }

  mutable onednn::Backend backend_;  // locks itself
  std::string implementation_;
};

class NativePlan final : public Plan {
 public:
  using Plan::Plan;
  const char* backend() const noexcept override { return "native"; }
  std::string implementation() const override {
    return std::string("onedsl two-pass kernel, ") + native::isa_name();
  }

 private:
  void run(const Arguments& arguments) const override {
    native::run(key().problem, key().num_threads, arguments);
  }
};

std::shared_ptr<const Plan> make_plan(const PlanKey& key) {
  switch (key.backend) {
    case BackendChoice::onednn:
      return std::make_shared<OneDNNPlan>(key);
    case BackendChoice::native:
      return std::make_shared<NativePlan>(key);
    case BackendChoice::automatic:
      // oneDNN sums in f32 one after the other: its error grows with the elements a channel and
      // passes the tolerance of 1e-6 at some thousands, and on most layouts it is slower too.
      return std::make_shared<NativePlan>(key);
  }
  return nullptr;
}

struct Hash {
  std::size_t operator()(const PlanKey& key) const noexcept {
    const Geometry& g = key.problem.geometry;
    std::size_t h = std::hash<double>{}(key.problem.epsilon);
    // The loops have no part: what differs in them alone is rare.
    for (const std::int64_t part :
         {g.outer, g.channels, g.inner, static_cast<std::int64_t>(key.problem.data),
          static_cast<std::int64_t>(key.problem.statistics),
          static_cast<std::int64_t>(key.statistics_type), static_cast<std::int64_t>(key.backend),
          std::int64_t{key.problem.sums}, std::int64_t{key.num_threads},
          std::int64_t{key.fork_generation}}) {
      h = (h ^ static_cast<std::size_t>(part)) * 0x9e3779b97f4a7c15U;
      h ^= h >> 32;
    }
    return h;
  }
};

// A process that sees ever new shapes must not keep a plan for each of them for ever.
constexpr std::size_t max_plans = 4096;

std::mutex plans_mutex;
std::unordered_map<PlanKey, std::shared_ptr<const Plan>, Hash> plans;

// A fork while another thread holds the mutex would leave the child with it locked.
[[maybe_unused]] const int registered = pthread_atfork(
    [] { plans_mutex.lock(); }, [] { plans_mutex.unlock(); }, [] { plans_mutex.unlock(); });

}  // namespace

bool operator==(const PlanKey& a, const PlanKey& b) noexcept {
  return a.problem.geometry == b.problem.geometry && a.problem.data == b.problem.data &&
         a.problem.statistics == b.problem.statistics && a.problem.epsilon == b.problem.epsilon &&
         a.problem.sums == b.problem.sums && a.statistics_type == b.statistics_type &&
         a.backend == b.backend && a.num_threads == b.num_threads &&
         a.fork_generation == b.fork_generation;
}

void Plan::execute(const Ports& ports) const {
  const Problem& problem = key_.problem;
  const auto count = static_cast<std::size_t>(problem.geometry.statistics());
  const bool sums = ports.diff_gamma != nullptr;
  if (problem.geometry.elements() == 0) {
    // oneDNN leaves the sums of an empty tensor unwritten, or not, from version to version.
    for (void* const sum : {ports.diff_gamma, ports.diff_beta}) {
      if (sum != nullptr) std::memset(sum, 0, count * size_of(key_.statistics_type));
    }
    return;
  }
  if (key_.statistics_type == DataType::f32) {
    run({ports.src, ports.diff_dst, static_cast<const float*>(ports.mean),
         static_cast<const float*>(ports.variance), static_cast<const float*>(ports.gamma),
         ports.diff_src, static_cast<float*>(ports.diff_gamma),
         static_cast<float*>(ports.diff_beta)});
    return;
  }
  const bool bf16 = key_.statistics_type == DataType::bf16;
  std::vector<float> wide(count * 5);
  float* next = wide.data();
  const auto widened = [&](const void* const narrow) -> const float* {
    if (narrow == nullptr) return nullptr;
    const auto* const from = static_cast<const std::uint16_t*>(narrow);
    float* const to = next;
    std::transform(from, from + count, to, bf16 ? widen_bf16 : widen_f16);
    next += count;
    return to;
  };
  const float* const mean = widened(ports.mean);
  const float* const variance = widened(ports.variance);
  const float* const gamma = widened(ports.gamma);
  float* const diff_gamma = sums ? next : nullptr;
  float* const diff_beta = sums ? next + count : nullptr;
  run({ports.src, ports.diff_dst, mean, variance, gamma, ports.diff_src, diff_gamma, diff_beta});
  if (sums) {
    const auto narrow = [&](const float* const from, void* const to) {
      std::transform(from, from + count, static_cast<std::uint16_t*>(to),
                     bf16 ? narrow_bf16 : narrow_f16);
    };
    narrow(diff_gamma, ports.diff_gamma);
    narrow(diff_beta, ports.diff_beta);
  }
}

std::shared_ptr<const Plan> find_plan(const PlanKey& key) {
  {
    const std::lock_guard<std::mutex> lock(plans_mutex);
    const auto found = plans.find(key);
    if (found != plans.end()) return found->second;
  }
  std::shared_ptr<const Plan> plan = make_plan(key);  // slow, and needs no lock
  const std::lock_guard<std::mutex> lock(plans_mutex);
  if (plans.size() >= max_plans) plans.clear();
  return plans.emplace(key, std::move(plan)).first->second;
}

}  // namespace onedsl
