#include "run_log.hpp"

#include <chrono>

namespace py = pybind11;

namespace onedsl {
namespace {

// Returns the names of the ports of a set. `own` has the names of all ports, or is empty.
template <class Port>
py::tuple names_of(const PortSet<Port> set, const PortSet<Port> all,
                   const std::vector<std::string>& own, const char* const* const names) {
  py::list list;
  std::size_t i = 0;
  all.for_each([&](const Port port) {
    const std::string name = i < own.size() ? own[i] : names[static_cast<std::size_t>(port)];
    if (set.has(port)) list.append(name);
    ++i;
  });
  return py::tuple(list);
}

template <class Port, class Pointers>
PortSet<Port> present(const Pointers& pointers, const PortSet<Port> all) {
  PortSet<Port> set;
  all.for_each([&](const Port port) {
    if (pointers[port] != nullptr) set.add(port);
  });
  return set;
}

py::handle record;  // never destroyed, because static objects are destroyed after the interpreter

}  // namespace

void set_run_log(const py::function& function) { record = function.inc_ref(); }

void RunLog::run_timed(const Plan& plan, const Ports& ports) {
  const auto begin = std::chrono::steady_clock::now();
  plan.execute(ports);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  const Signature& signature = signature_of(plan.key().problem.operation);
  record_ = RunRecord{plan.key(),
                      present(ports.in, signature.inputs),
                      present(ports.out, signature.outputs),
                      plan.backend(),
                      plan.implementation(),
                      elapsed.count()};
}

void RunLog::write_record(const LogNames& names) const {
  const PlanKey& key = record_->key;
  const Geometry& g = key.problem.geometry;
  const Signature& signature = signature_of(key.problem.operation);
  record(names.op.empty() ? signature.name : names.op, key.problem.data,
         py::make_tuple(g.outer, g.channels, g.inner),
         names_of(record_->given, signature.inputs, names.inputs, input_names.data()),
         names_of(record_->computed, signature.outputs, names.outputs, output_names.data()),
         record_->backend, record_->implementation, key.num_threads, record_->seconds);
}

}  // namespace onedsl
