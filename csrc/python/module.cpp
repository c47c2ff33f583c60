#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../bench/triad.hpp"
#include "../core/call.hpp"
#include "../core/geometry.hpp"
#include "../core/operation.hpp"
#include "../core/threads.hpp"
#include "../native/plan/cpu.hpp"
#include "../torch/compute.hpp"
#include "../torch/onedsl_ops.hpp"
#include "../torch/overrides.hpp"
#include "../xla/handlers.hpp"
#include "arrays.hpp"
#include "bindings.hpp"
#include "dlpack.hpp"
#include "gil.hpp"
#include "scope.hpp"

namespace py = pybind11;

namespace onedsl {
namespace {

// ---- Types ----

void bind_types(py::module_& module) {
  module.attr("MAX_TENSOR_BYTES") = max_tensor_bytes;
  module.attr("MAX_RANK") = max_rank;
  module.attr("CACHE_LINE") = cache_line;
  module.attr("EPSILON_LIMITS") = positive_limits;
  module.def("supported_types",
             [] { return std::vector(supported_types.begin(), supported_types.end()); });
}

// ---- Arrays ----

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
  module.def("at_cache_line", &at_cache_line, py::arg("memory").noconvert(), py::arg("dtype"),
             py::arg("shape"), py::arg("strides"), py::pos_only());
  module.def("import_array", &import_array, py::arg("array"), py::pos_only());
  module.def("mark_written", &mark_written, py::arg("out"), py::pos_only());
  module.def(
      "empty_tensor",
      [](const py::object& library, const DataType type, const Sizes& shape, const Sizes& strides) {
        const auto rank = static_cast<py::ssize_t>(std::min(shape.size(), strides.size()));
        const PyTorch* const pytorch = pytorch_of(library);
        if (pytorch == nullptr) return py::object(py::none());
        return empty_tensor(*pytorch, {type, nullptr, rank, shape.data(), strides.data()});
      },
      py::arg("library"), py::arg("dtype"), py::arg("shape"), py::arg("strides"), py::pos_only());
  module.def("export_array", &export_array, py::arg("array"), py::arg("like"), py::pos_only());
}

// ---- Capabilities ----

void run_triad(const py::object& out, const py::object& a, const py::object& b,
               const bool non_temporal) {
  const std::optional<View> to = view(out);
  const std::optional<View> from_a = view(a);
  const std::optional<View> from_b = view(b);
  for (const std::optional<View>& v : {to, from_a, from_b}) {
    if (!v || v->type != DataType::f32 || v->rank != 1 || v->size() != to->size() ||
        !v->is_c_contiguous() || v->size() % 4 != 0 ||
        reinterpret_cast<std::uintptr_t>(v->data) % 16 != 0) {
      throw std::invalid_argument(
          "triad: out, a and b must be f32 vectors of one length, a multiple of 4, aligned to 16 "
          "bytes");
    }
  }
  if (!to->writeable) throw std::invalid_argument("triad: out must be writeable");
  // Safe without the GIL: the caller's frame keeps the arrays alive.
  const ReleasedGil released;
  triad(reinterpret_cast<std::int32_t*>(to->data),
        reinterpret_cast<const std::int32_t*>(from_a->data),
        reinterpret_cast<const std::int32_t*>(from_b->data), to->size(), non_temporal,
        max_threads() > 1);
}

void bind_capabilities(py::module_& module) {
  module.def("native_isa", &native::isa_name);
  module.def("best_native_isa", [] { return native::public_name(native::best_isa()); });
  module.def("known_native_caps", &native::known_caps);
  module.def("unknown_native_cap", &native::unknown_cap);
  module.def("last_cache_bytes", [] { return native::this_machine().cache.bytes; });
  module.def("max_threads", &max_threads);
  module.def("triad", &run_triad);
}

// ---- Frameworks ----

struct TorchUse {
  const std::uint64_t number = torch::begin_use();
  void end() const noexcept { torch::end_use(number); }
};

void bind_frameworks(py::module_& module) {
  module.def("register_torch_ops", &torch::register_onedsl_ops);
  module.def("torch_ops", &torch::overridden_ops);
  module.def("register_pytorchs_kernels", &torch::register_pytorchs_kernels, py::arg("library"),
             py::pos_only());
  module.def("override_torch_kernels", &torch::override_pytorch, py::arg("ops"), py::pos_only());
  bind_scope<TorchUse>(module, "TorchUse", "begin_torch_use");
  module.def("end_all_torch_uses", &torch::end_all_uses);
  module.def("torch_kernels_in_use", &torch::in_use);
  module.def(
      "why_torch_unsupported",
      [](const std::string& operation, const std::vector<std::optional<torch::TensorInfo>>& inputs,
         const double epsilon) {
        return torch::why_unsupported(parse_operation(operation), inputs, epsilon);
      },
      py::arg("operation"), py::arg("inputs"), py::arg("epsilon"), py::pos_only());
  module.def("xla_handlers", [] {
    py::dict all;
    for (const xla::NamedHandler& named : xla::handlers) {
      all[signature_of(named.operation).id] =
          py::make_tuple(named.name, py::capsule(reinterpret_cast<void*>(named.handler)));
    }
    return all;
  });
}

}  // namespace
}  // namespace onedsl

// Needs no GIL: state that threads share has a mutex of its own, is atomic, or is set only once,
// before its first use.
PYBIND11_MODULE(_core, module, pybind11::mod_gil_not_used()) {
  module.doc() = "onedsl's extension. Private: use the package onedsl.";
  // Initialized now: a child that is forked meanwhile, or a signal handler, would wait for them.
  onedsl::native::this_machine();
  onedsl::view(py::none());
  onedsl::bind_types(module);
  onedsl::bind_errors(module);
  onedsl::bind_dlpack(module);
  onedsl::bind_operator(module);
  onedsl::bind_graph(module);
  onedsl::bind_run_log(module);
  onedsl::bind_capabilities(module);
  onedsl::bind_frameworks(module);
}
