#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "plan.hpp"

namespace onedsl {

// The names of an operator and of all its ports, in the order of the signature. If empty, those of
// the operation.
struct LogNames {
  std::string op;
  std::vector<std::string> inputs, outputs;
};

// The functions are called only while the log is enabled.
struct RunLog {
  std::atomic<bool> enabled = false;
  void (*record)(const Plan& plan, const Ports& ports, const LogNames& names, double seconds) = {};
  // PyTorch's own kernel computes a call, because onedsl does not support `reason`.
  void (*record_fallback)(const char* reason) = {};
};
inline RunLog run_log;

// Executes a plan and logs it. The caller does not hold the GIL.
void run(const Plan& plan, const Ports& ports, const LogNames& names = {});

}  // namespace onedsl
