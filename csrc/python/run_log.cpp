#include "run_log.hpp"

#include <pybind11/pybind11.h>

#include <chrono>

namespace py = pybind11;

namespace onedsl {

void RunLog::run_timed(const Plan& plan, const Ports& ports) {
  const auto begin = std::chrono::steady_clock::now();
  plan.execute(ports);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  record_ = RunRecord{plan.key(), plan.backend(), plan.implementation(), elapsed.count()};
}

void RunLog::write_record() const {
  const PlanKey& key = record_->key;
  const Geometry& g = key.problem.geometry;
  py::module_::import("onedsl.runtime.run_log")
      .attr("record")(signature_of(key.problem.operation).name, key.problem.data,
                      py::make_tuple(g.outer, g.channels, g.inner), record_->backend,
                      record_->implementation, key.num_threads, record_->seconds);
}

}  // namespace onedsl
