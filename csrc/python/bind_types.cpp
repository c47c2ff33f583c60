#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>

#include "bind.hpp"
#include "call.hpp"

namespace py = pybind11;

namespace onedsl {

void bind_types(py::module_& module) {
  module.attr("MAX_TENSOR_BYTES") = max_tensor_bytes;
  py::native_enum<DataType>(module, "DataType", "enum.Enum")
      .value("f32", DataType::f32)
      .value("bf16", DataType::bf16)
      .value("f16", DataType::f16)
      .finalize();
  py::native_enum<BackendChoice>(module, "Backend", "enum.Enum")
      .value("auto", BackendChoice::automatic)
      .value("onednn", BackendChoice::onednn)
      .value("native", BackendChoice::native)
      .finalize();
  py::native_enum<Operation>(module, "Operation", "enum.Enum")
      .value("training_backward", Operation::training_backward)
      .value("forward_training", Operation::forward_training)
      .value("relu_forward_training", Operation::relu_forward_training)
      .value("relu_training_backward", Operation::relu_training_backward)
      .finalize();
  py::native_enum<Statistics>(module, "Statistics", "enum.Enum")
      .value("batch", Statistics::batch)
      .value("frozen", Statistics::frozen)
      .finalize();
  py::native_enum<StatisticsShape>(module, "StatisticsShape", "enum.Enum")
      .value("channel_second", StatisticsShape::channel_second)
      .value("channel_last", StatisticsShape::channel_last)
      .value("broadcast", StatisticsShape::broadcast)
      .finalize();
  py::native_enum<VarianceKind>(module, "VarianceKind", "enum.Enum")
      .value("variance", VarianceKind::variance)
      .value("inverse_stddev", VarianceKind::inverse_stddev)
      .finalize();
}

}  // namespace onedsl
