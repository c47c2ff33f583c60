#include "run_log.hpp"

#include <chrono>

namespace py = pybind11;

namespace onedsl {
namespace {

py::handle record;  // never destroyed, because static objects are destroyed after the interpreter

}  // namespace

void set_run_log(const py::function& function) { record = function.inc_ref(); }

void RunLog::run_timed(const Plan& plan, const Ports& ports) {
  const auto begin = std::chrono::steady_clock::now();
  plan.execute(ports);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  record_ = RunRecord{plan.key(), plan.backend(), plan.implementation(), elapsed.count()};
}

void RunLog::write_record() const {
  const PlanKey& key = record_->key;
  const Geometry& g = key.problem.geometry;
  record(signature_of(key.problem.operation).name, key.problem.data,
         py::make_tuple(g.outer, g.channels, g.inner), record_->backend, record_->implementation,
         key.num_threads, record_->seconds);
}

}  // namespace onedsl
