#include <pybind11/pybind11.h>

#include "bind.hpp"

PYBIND11_MODULE(_core, module) {
  module.doc() = "onedsl's extension. Private: use the package onedsl.";
  onedsl::bind_errors(module);
  onedsl::bind_dlpack(module);
  onedsl::bind_operator(module);
  onedsl::bind_capabilities(module);
}
