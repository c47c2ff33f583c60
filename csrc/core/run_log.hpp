#pragma once

#include <atomic>
#include <string>

#include "call.hpp"

namespace onedsl {

// The names of an operator and of its ports. If empty, those of the operation.
struct LogNames {
  std::string op;
  PerPort<Input, std::string> inputs;
  PerPort<Output, std::string> outputs;
};

// The function is called only while there are subscribers.
struct RunLog {
  std::atomic<int> subscribers = 0;
  bool has_subscribers() const noexcept { return subscribers.load(std::memory_order_relaxed) > 0; }
  void (*record)(const Call& call, int num_threads, const LogNames& names, double seconds) = {};
};
inline RunLog run_log;

}  // namespace onedsl
