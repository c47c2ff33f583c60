#include "run_log.hpp"

#include <chrono>

#include "gil.hpp"

namespace py = pybind11;

namespace onedsl {
namespace {

// Returns the names of the ports that have memory. `own` has the names of all ports, or is empty.
template <class Port, class Pointers>
py::tuple present(const PortSet<Port> all, const Pointers& pointers,
                  const std::vector<std::string>& own) {
  py::list list;
  std::size_t i = 0;
  all.for_each([&](const Port port) {
    const std::string name = i < own.size() ? own[i] : name_of(port);
    if (pointers[port] != nullptr) list.append(name);
    ++i;
  });
  return py::tuple(list);
}

py::handle record;  // never destroyed, because static objects are destroyed after the interpreter

}  // namespace

void set_run_log(const py::function& function) { record = function.inc_ref(); }

void run_logged(const Plan& plan, const Ports& ports, const LogNames& names) {
  const auto begin = std::chrono::steady_clock::now();
  plan.execute(ports);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  const PlanKey& key = plan.key();
  const Geometry& g = key.problem.geometry;
  const Signature& signature = signature_of(key.problem.operation);
  const AcquiredGil acquired;
  record(names.op.empty() ? signature.name : names.op, key.problem.data,
         py::make_tuple(g.outer, g.channels, g.inner),
         present(signature.inputs, ports.in, names.inputs),
         present(signature.outputs, ports.out, names.outputs), plan.backend(),
         plan.implementation(), key.num_threads, elapsed.count());
}

}  // namespace onedsl
