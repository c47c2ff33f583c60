#pragma once

#include <memory>
#include <string>

#include "problem.hpp"
#include "threads.hpp"

namespace onedsl {

enum class BackendChoice { automatic, onednn, native };

// Everything that decides a plan; equal keys share one.
struct PlanKey {
  Problem problem;
  DataType statistics_type = DataType::f32;
  BackendChoice backend = BackendChoice::automatic;
  int num_threads = 1;
  int fork_generation = 0;
};
bool operator==(const PlanKey& a, const PlanKey& b) noexcept;

// A caller's own memory, port by port. Null: gamma absent; diff_gamma and diff_beta not wanted.
struct Ports {
  const void* src = nullptr;
  const void* diff_dst = nullptr;
  const void* mean = nullptr;
  const void* variance = nullptr;
  const void* gamma = nullptr;
  void* diff_src = nullptr;
  void* diff_gamma = nullptr;
  void* diff_beta = nullptr;
};

// How one problem is run. Holds none of the caller's arrays; any number of threads may execute it
// at once.
class Plan {
 public:
  explicit Plan(const PlanKey& key) : key_(key) {}
  virtual ~Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  // Ports must not overlap, but for diff_src that may be exactly diff_dst.
  void execute(const Ports& ports) const;

  const PlanKey& key() const noexcept { return key_; }
  virtual const char* backend() const noexcept = 0;  // "onednn" or "native"
  virtual std::string implementation() const = 0;    // for people to read

 private:
  virtual void run(const Arguments& arguments) const = 0;

  PlanKey key_;
};

// The plan for the key, made now or at an earlier call. Throws UnsupportedError where the chosen
// backend cannot run it.
std::shared_ptr<const Plan> find_plan(const PlanKey& key);

}  // namespace onedsl
