#include "../core/run_log.hpp"

#include <pybind11/stl.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "../native/run_call.hpp"
#include "../torch/call_log.hpp"
#include "bindings.hpp"
#include "gil.hpp"
#include "scope.hpp"

namespace py = pybind11;

namespace onedsl {
namespace {

// Objects of Python. Never destroyed, because static objects are destroyed after the interpreter.
py::handle record_run;
py::handle record_call;
py::handle subscribers;  // a dict: the functions that get all records, by number

// Passes all records to a function. There is no lock: a forked child or a signal handler would wait
// for it forever. The function must not refer to its Scope: the garbage collector does not find
// such a cycle.
class Subscription {
 public:
  explicit Subscription(const py::object& subscriber) : number_(numbers++) {
    subscribers[number_] = subscriber;
    ++run_log.subscribers;
  }
  void end() noexcept {
    --run_log.subscribers;
    PyDict_DelItem(subscribers.ptr(), number_.ptr());  // it is there, so this cannot fail
  }

 private:
  inline static std::atomic<std::uint64_t> numbers = 0;
  py::int_ number_;
};

// Returns the names of some ports.
template <class Port>
py::tuple names_of(const PortSet<Port> ports, const PerPort<Port, std::string>& own) {
  py::list list;
  ports.for_each(
      [&](const Port port) { list.append(own[port].empty() ? name_of(port) : own[port]); });
  return py::tuple(list);
}

// Raises an exception, which it owns, on the main thread.
int raise_pending(void* const exception) {
  const auto error = py::reinterpret_steal<py::object>(static_cast<PyObject*>(exception));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  return -1;
}

// Calls log(), and returns its exception. Others than Python's are those for a lack of memory.
template <class Log>
std::optional<py::error_already_set> exception_of(const Log& log) {
  try {
    log();
    return std::nullopt;
  } catch (const py::error_already_set& error) {
    return error;
  } catch (const std::exception&) {
    PyErr_NoMemory();
    return py::error_already_set();
  }
}

// Calls log() with the GIL. Its exceptions must not end a run, nor reach PyTorch, which has its own
// pybind11. On the main thread, where signal handlers run, they are raised after the call. Those of
// other threads are reported as unraisable.
template <class Log>
void call_python(const Log& log) {
  if (!can_acquire_gil()) return;
  const AcquiredGil acquired;
  std::optional<py::error_already_set> error = exception_of(log);
  if (!error) return;
  const bool is_main_thread = gettid() == getpid();
  py::object exception = error->value();
  if (is_main_thread && Py_AddPendingCall(&raise_pending, exception.ptr()) == 0) {
    exception.release();
  } else {
    error->discard_as_unraisable("onedsl's run log");
  }
}

void log_run(const Call& call, const int num_threads, const LogNames& names, const double seconds) {
  const Geometry& g = call.geometry;
  call_python([&] {
    record_run(
        names.op.empty() ? signature_of(call.operation).name : names.op, name_of(call.data),
        py::make_tuple(g.outer, g.channels, g.inner), names_of(call.given, names.inputs),
        names_of(call.outputs, names.outputs), native::implementation(call.pass), num_threads,
        seconds,
        names_of(call.copied_inputs, names.inputs) + names_of(call.copied_outputs, names.outputs));
  });
}

std::vector<std::uintptr_t> integers(const std::vector<const void*>& addresses) {
  std::vector<std::uintptr_t> found;
  for (const void* const address : addresses) {
    found.push_back(reinterpret_cast<std::uintptr_t>(address));
  }
  return found;
}

void log_call(const torch::LoggedCall& call) {
  call_python([&] {
    record_call(call.is_forward ? "forward" : "gradient", call.computed, call.reason,
                py::tuple(py::cast(call.shape)), integers(call.addresses),
                reinterpret_cast<std::uintptr_t>(call.source), integers(call.results));
  });
}

}  // namespace

void bind_run_log(py::module_& module) {
  module.def(
      "set_run_log",
      [](const py::function& run, const py::function& call) {
        record_run = run.inc_ref();
        record_call = call.inc_ref();
        run_log.record = &log_run;
        torch::call_log.record = &log_call;
      },
      py::arg("record_run"), py::arg("record_call"), py::pos_only());
  subscribers = py::dict().release();
  module.def("subscribers", [] {
    auto all = py::reinterpret_steal<py::list>(PyDict_Values(subscribers.ptr()));
    if (!all) throw py::error_already_set();
    return all;
  });
  bind_scope<Subscription, py::object>(module, "Subscription", "subscribe");
  module.def("torch_kernels_used", [] { return torch::call_log.used.load(); });
}

}  // namespace onedsl
