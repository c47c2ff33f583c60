#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bind.hpp"
#include "dlpack.hpp"

namespace py = pybind11;

namespace onedsl {

void bind_dlpack(py::module_& module) {
  py::class_<Producer>(module, "Producer", py::is_final())
      .def(
          "__dlpack__",
          [](const Producer& self, const py::object&, const py::object& max_version,
             const py::object&, const py::object&) {
            return self.capsule(!max_version.is_none() &&
                                py::cast<int>(max_version[py::int_(0)]) >= 1);
          },
          py::kw_only(), py::arg("stream") = py::none(), py::arg("max_version") = py::none(),
          py::arg("dl_device") = py::none(), py::arg("copy") = py::none())
      .def("__dlpack_device__", [](const Producer&) { return py::make_tuple(1, 0); });
  module.def("import_array", &import_array, py::arg("array"), py::pos_only());
  module.def("dlpack_type", &dlpack_type, py::arg("array"), py::pos_only());
  module.def("export_array", &export_array, py::arg("array"), py::arg("like"), py::pos_only());
}

}  // namespace onedsl
