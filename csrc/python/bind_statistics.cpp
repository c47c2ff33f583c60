#include <pybind11/pybind11.h>

#include "../core/pytorch_statistics.hpp"
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

void update(const py::handle running_mean, const py::handle running_variance, const py::handle mean,
            const py::handle variance, const double momentum, const double count) {
  const py::ssize_t length = length_of(mean);
  update_running(vector_of(running_mean, length), vector_of(running_variance, length),
                 vector_of(mean, length), vector_of(variance, length), length, momentum, count);
}

void invert(const py::handle variance, const double epsilon) {
  const py::ssize_t length = length_of(variance);
  to_inverse_stddev(vector_of(variance, length), length, epsilon);
}

}  // namespace

void bind_statistics(py::module_& module) {
  module.def("update_running", &update, py::arg("running_mean"), py::arg("running_variance"),
             py::arg("mean"), py::arg("variance"), py::arg("momentum"), py::arg("count"),
             py::pos_only());
  module.def("to_inverse_stddev", &invert, py::arg("variance"), py::arg("epsilon"), py::pos_only());
}

}  // namespace onedsl
