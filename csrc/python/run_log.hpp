#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string>
#include <vector>

#include "../core/logging_enabled.hpp"
#include "../plan/plan.hpp"

// Passes a record of each run to a Python function while logging is enabled.
namespace onedsl {

// Sets the function, `record` of onedsl/runtime/run_log.py.
void set_run_log(const pybind11::function& record);

// The names of an operator and of all its ports, in the order of the signature. If empty, those of
// the operation.
struct LogNames {
  std::string op;
  std::vector<std::string> inputs, outputs;
};

class RunLog {
 public:
  // Executes a plan. The caller does not hold the GIL.
  void run(const Plan& plan, const Ports& ports) {
    if (!logging_enabled.load(std::memory_order_relaxed)) return plan.execute(ports);
    run_timed(plan, ports);
  }

  // Passes the record on, if there is one. The caller holds the GIL.
  void write(const LogNames& names = {}) const {
    if (record_) write_record(names);
  }

 private:
  struct RunRecord {
    PlanKey key;
    InputSet given;
    OutputSet computed;
    std::string backend, implementation;
    double seconds = 0;
  };

  void run_timed(const Plan& plan, const Ports& ports);
  void write_record(const LogNames& names) const;

  std::optional<RunRecord> record_;
};

}  // namespace onedsl
