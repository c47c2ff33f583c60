#include <pybind11/pybind11.h>

#include "../xla/handlers.hpp"
#include "bind.hpp"

namespace py = pybind11;

namespace onedsl {

void bind_xla(py::module_& module) {
  module.def("xla_handlers", [] {
    py::dict all;
    for (const xla::NamedHandler& named : xla::handlers) {
      all[named.name] = py::capsule(reinterpret_cast<void*>(named.handler));
    }
    return all;
  });
}

}  // namespace onedsl
