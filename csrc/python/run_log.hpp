#pragma once

#include <optional>
#include <string>

#include "../core/logging_enabled.hpp"
#include "../core/problem.hpp"
#include "../plan/plan.hpp"

// What runs, told to Python's onedsl.runtime.run_log while somebody listens.
namespace onedsl {

// From now on, or from now on no more.
void enable_logging(bool on);

// Runs one plan. While nobody listens, that costs a look at a flag.
class RunLog {
 public:
  // Without the GIL.
  void run(const Plan& plan, const Ports& ports) {
    if (!logging_enabled.load(std::memory_order_relaxed)) return plan.execute(ports);
    run_and_watch(plan, ports);
  }

  // With the GIL, when the results are written.
  void tell() const {
    if (story_) tell_python();
  }

 private:
  struct RunRecord {
    PlanKey key;
    std::string backend, implementation;
    double seconds = 0;
    std::string printed;  // by oneDNN
  };

  void run_and_watch(const Plan& plan, const Ports& ports);
  void tell_python() const;

  std::optional<RunRecord> story_;
};

}  // namespace onedsl
