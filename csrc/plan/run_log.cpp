#include "run_log.hpp"

#include <chrono>

namespace onedsl {

void run(const Plan& plan, const Ports& ports, const LogNames& names) {
  // Disabled logging costs a run one load of this flag.
  if (!run_log.enabled.load(std::memory_order_relaxed)) return plan.execute(ports);
  const auto begin = std::chrono::steady_clock::now();
  plan.execute(ports);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  run_log.record(plan, ports, names, elapsed.count());
}

}  // namespace onedsl
