#include <pybind11/pybind11.h>

#include <cmath>

#include "arrays.hpp"
#include "bind.hpp"

namespace py = pybind11;

namespace onedsl {
namespace {

// The values of an f32 vector that may be written.
float* vector_of(const py::handle object, const py::ssize_t length) {
  const std::optional<View> v = view(object, RequiresGrad::allowed);
  if (!v || v->type != DataType::f32 || !v->writeable || !v->is_vector(length)) {
    throw py::value_error("onedsl._core: not a vector of f32 of the wanted length");
  }
  return reinterpret_cast<float*>(v->data);
}

py::ssize_t length_of(const py::handle object) {
  const std::optional<View> v = view(object, RequiresGrad::allowed);
  return v && v->rank == 1 ? v->shape[0] : 0;
}

// PyTorch's convention, which is neither the op's nor oneDNN's: momentum is the share of the new
// statistics, and the running variance is of the unbiased ones.
void update_running(const py::handle running_mean, const py::handle running_variance,
                    const py::handle mean, const py::handle variance, const double momentum,
                    const double count) {
  const py::ssize_t length = length_of(mean);
  float* const old_mean = vector_of(running_mean, length);
  float* const old_variance = vector_of(running_variance, length);
  const float* const new_mean = vector_of(mean, length);
  const float* const new_variance = vector_of(variance, length);
  const double unbiased = count / (count - 1);
  const auto mix = [momentum](const float before, const double batch) {
    return static_cast<float>(momentum * batch + (1 - momentum) * static_cast<double>(before));
  };
  for (py::ssize_t c = 0; c < length; ++c) {
    old_mean[c] = mix(old_mean[c], new_mean[c]);
    old_variance[c] = mix(old_variance[c], static_cast<double>(new_variance[c]) * unbiased);
  }
}

void to_inverse_deviation(const py::handle variance, const double epsilon) {
  const py::ssize_t length = length_of(variance);
  float* const values = vector_of(variance, length);
  for (py::ssize_t c = 0; c < length; ++c) {
    values[c] = static_cast<float>(1 / std::sqrt(static_cast<double>(values[c]) + epsilon));
  }
}

}  // namespace

void bind_statistics(py::module_& module) {
  module.def("update_running", &update_running, py::arg("running_mean"),
             py::arg("running_variance"), py::arg("mean"), py::arg("variance"), py::arg("momentum"),
             py::arg("count"), py::pos_only());
  module.def("to_inverse_deviation", &to_inverse_deviation, py::arg("variance"), py::arg("epsilon"),
             py::pos_only());
}

}  // namespace onedsl
