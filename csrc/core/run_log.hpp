#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "ports.hpp"
#include "problem.hpp"

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
  // onedsl's kernels ran.
  void (*record)(const Problem& problem, int num_threads, const Ports& ports, const LogNames& names,
                 double seconds) = {};
  // PyTorch's own kernel computes a call, because onedsl does not support `reason`.
  void (*record_fallback)(const char* reason) = {};
};
inline RunLog run_log;

}  // namespace onedsl
