#include <pybind11/pybind11.h>

#include "../torch/kernels.hpp"
#include "bind.hpp"

namespace py = pybind11;

namespace onedsl {

void bind_torch(py::module_& module) {
  // A capsule that takes the kernels with it, or None.
  module.def("register_torch_kernels", []() -> py::object {
    torch::Registration kernels = torch::register_kernels();
    if (!kernels) return py::none();
    return py::capsule(kernels.release(), [](void* const library) {
      torch::DeleteLibrary()(static_cast<torch::abi::Library*>(library));
    });
  });
  module.def("fail_torch_kernel", &torch::fail, py::arg("why"), py::pos_only());
}

}  // namespace onedsl
