#include <pybind11/pybind11.h>

#include "../torch/kernels.hpp"
#include "bind.hpp"
#include "run_log.hpp"

namespace py = pybind11;

namespace onedsl {
namespace {

// PyTorch calls this without the GIL. An exception must not reach PyTorch, which has its own
// pybind11: KeyboardInterrupt is raised again after the kernel, others are reported as unraisable.
void run_logged(const Plan& plan, const Ports& ports) {
  RunLog log;
  log.run(plan, ports);
  const py::gil_scoped_acquire gil;
  try {
    log.tell();
  } catch (py::error_already_set& error) {
    if (error.matches(PyExc_KeyboardInterrupt)) {
      PyErr_SetInterrupt();
    } else {
      error.discard_as_unraisable("onedsl's run log");
    }
  }
}

}  // namespace

void bind_torch(py::module_& module) {
  module.def("register_torch_kernels", [] { torch::register_kernels(&run_logged); });
  module.def("use_torch_kernels", &torch::use_kernels, py::arg("use"), py::pos_only());
}

}  // namespace onedsl
