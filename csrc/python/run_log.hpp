#pragma once

#include <pybind11/pybind11.h>

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

void run_logged(const Plan& plan, const Ports& ports, const LogNames& names);

// Executes a plan. The caller does not hold the GIL.
inline void run(const Plan& plan, const Ports& ports, const LogNames& names) {
  if (!logging_enabled.load(std::memory_order_relaxed)) return plan.execute(ports);
  run_logged(plan, ports, names);
}

}  // namespace onedsl
