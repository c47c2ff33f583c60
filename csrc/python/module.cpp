#include <pybind11/pybind11.h>

#include "bind.hpp"

// Nothing that can be changed is shared but what locks itself: it needs no GIL.
PYBIND11_MODULE(_core, module, pybind11::mod_gil_not_used()) {
  module.doc() = "onedsl's extension. Private: use the package onedsl.";
  onedsl::bind_errors(module);
  onedsl::bind_types(module);
  onedsl::bind_dlpack(module);
  onedsl::bind_operator(module);
  onedsl::bind_statistics(module);
  onedsl::bind_capabilities(module);
  onedsl::bind_torch(module);
  onedsl::bind_xla(module);
}
