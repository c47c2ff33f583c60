#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "bind.hpp"
#include "native/native.hpp"
#include "onednn/graph.hpp"
#include "threads.hpp"

namespace py = pybind11;

namespace onedsl {

void bind_capabilities(py::module_& module) {
  module.def("onednn_version", [] {
    const onednn::Version v = onednn::version();
    return py::make_tuple(v.major, v.minor, v.patch);
  });
  module.def("onednn_cpu_runtime", &onednn::cpu_runtime);
  module.def("onednn_cpu_isa", &onednn::cpu_isa);
  module.def("native_isa", &native::isa_name);
  module.def("max_threads", &max_threads);
  module.def(
      "compile_onednn_op",
      [](const std::vector<std::int64_t>& dims, const std::string& data_format, const DataType data,
         const DataType statistics, const bool gamma, const int num_outputs) {
        onednn::BatchNormTrainingBackward op;
        op.epsilon = 1e-5F;
        op.data_format = data_format;
        op.dims = dims;
        op.data = data;
        op.statistics = statistics;
        op.gamma = gamma;
        op.num_outputs = num_outputs;
        // oneDNN touches no Python object.
        const py::gil_scoped_release release;
        onednn::CompiledOp{op};
      },
      py::arg("dims"), py::arg("data_format"), py::arg("data"), py::arg("statistics"),
      py::arg("gamma"), py::arg("num_outputs"));
}

}  // namespace onedsl
