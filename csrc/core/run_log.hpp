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

// The function is called only while the log is enabled.
struct RunLog {
  std::atomic<bool> enabled = false;
  void (*record)(const Problem& problem, int num_threads, const Ports& ports, const LogNames& names,
                 double seconds) = {};
};
inline RunLog run_log;

}  // namespace onedsl
