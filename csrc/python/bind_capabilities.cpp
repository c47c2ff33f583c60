#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../core/threads.hpp"
#include "../native/cpu.hpp"
#include "../native/triad.hpp"
#include "../onednn/engine.hpp"
#include "../onednn/fork_guard.hpp"
#include "../onednn/graph.hpp"
#include "arrays.hpp"
#include "bind.hpp"
#include "gil.hpp"

namespace py = pybind11;

namespace onedsl {
namespace {

void check_dims(const std::vector<std::int64_t>& dims) {
  std::int64_t elements = 1;
  bool countable = dims.size() >= 2;
  for (const std::int64_t size : dims) {
    countable = countable && size >= 0 && !__builtin_mul_overflow(elements, size, &elements);
  }
  if (!countable) throw std::invalid_argument("onedsl._core.onednn_compiles: unchecked dims");
}

}  // namespace

void bind_capabilities(py::module_& module) {
  module.def("onednn_version", [] {
    const onednn::Version v = onednn::version();
    return py::make_tuple(v.major, v.minor, v.patch);
  });
  module.def("onednn_cpu_runtime", &onednn::cpu_runtime);
  module.def("onednn_build_hash", &onednn::build_hash);
  module.def("onednn_cpu_isa", &onednn::cpu_isa);
  module.def("native_isa", &native::isa_name);
  module.def("best_native_isa", [] { return native::public_name(native::best_isa()); });
  module.def("known_native_caps", &native::known_caps);
  module.def("unknown_native_cap", &native::unknown_cap);
  module.def("last_cache_bytes", &native::last_cache_bytes);
  module.def("max_threads", &max_threads);
  module.def("triad", [](const py::object& out, const py::object& a, const py::object& b,
                         const bool non_temporal) {
    const std::optional<View> to = view(out);
    const std::optional<View> from_a = view(a);
    const std::optional<View> from_b = view(b);
    for (const std::optional<View>& v : {to, from_a, from_b}) {
      if (!v || v->type != DataType::f32 || !v->is_vector(to->size()) || v->size() % 4 != 0 ||
          reinterpret_cast<std::uintptr_t>(v->data) % 16 != 0) {
        throw std::invalid_argument(
            "triad: out, a and b must be f32 vectors of one length, a multiple of 4, aligned to 16 "
            "bytes");
      }
    }
    if (!to->writeable) throw std::invalid_argument("triad: out must be writeable");
    // Safe without the GIL: only memory of arrays that the caller's frame keeps alive is touched.
    const ReleasedGil released;
    triad(reinterpret_cast<std::int32_t*>(to->data),
          reinterpret_cast<const std::int32_t*>(from_a->data),
          reinterpret_cast<const std::int32_t*>(from_b->data), to->size(), non_temporal,
          max_threads());
  });
  module.def("make_onednn_engine", [] {
    // Safe without the GIL: oneDNN touches no Python object.
    const ReleasedGil released;
    const onednn::ForkGuard inside;
    onednn::cpu_engine();
  });
  module.def(
      "onednn_compiles",
      [](std::vector<std::int64_t> dims, std::string data_format, const DataType data,
         const DataType statistics, const bool gamma, const int num_outputs) {
        check_dims(dims);
        if (num_outputs < 1 || num_outputs > 3 || (data_format != "NXC" && data_format != "NCX")) {
          throw std::invalid_argument("onedsl._core.onednn_compiles: unchecked arguments");
        }
        onednn::Op op;
        op.epsilon = 1e-5F;
        op.data_format = std::move(data_format);
        op.dims = std::move(dims);
        op.data = data;
        op.statistics = statistics;
        op.inputs = InputSet(Input::src, Input::diff_dst, Input::mean, Input::variance);
        if (gamma) op.inputs.add(Input::gamma);
        op.outputs = OutputSet(Output::diff_src);
        if (num_outputs > 1) op.outputs.add(Output::diff_gamma);
        if (num_outputs > 2) op.outputs.add(Output::diff_beta);
        // Safe without the GIL: oneDNN touches no Python object.
        const ReleasedGil released;
        const onednn::ForkGuard inside;
        onednn::CompiledGraph{op};
      },
      py::arg("dims"), py::arg("data_format"), py::arg("data"), py::arg("statistics"),
      py::arg("gamma"), py::arg("num_outputs"));
}

}  // namespace onedsl
