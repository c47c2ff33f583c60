#include <pybind11/gil_safe_call_once.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdint>
#include <tuple>
#include <vector>

#include "../core/geometry.hpp"
#include "dlpack.hpp"
#include "dlpack_abi.hpp"

namespace py = pybind11;

namespace onedsl {
namespace {

// Memory that the CPU reads and writes: its own, and what CUDA and ROCm pin.
bool is_host(const abi::Device device) {
  return device.type == abi::cpu || device.type == abi::cuda_host || device.type == abi::rocm_host;
}

std::optional<DataType> type_of(const abi::Type type) {
  if (type.lanes != 1) return std::nullopt;
  if (type.code == abi::floating && type.bits == 32) return DataType::f32;
  if (type.code == abi::bfloat && type.bits == 16) return DataType::bf16;
  if (type.code == abi::floating && type.bits == 16) return DataType::f16;
  return std::nullopt;
}

// Python's strings for what every call looks up.
struct Names {
  py::str exchange_api = "__dlpack_c_exchange_api__";
  py::str requires_grad = "requires_grad";
  py::str is_neg = "is_neg";
};

const Names& names() {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<Names> stored;
  return stored.call_once_and_store_result([] { return Names{}; }).get_stored();
}

// PyTorch's tensors may stand for more than their memory: for a graph, or for its negative.
bool is_more_than_memory(const py::handle object, const RequiresGrad requires_grad) {
  if (requires_grad == RequiresGrad::rejected &&
      py::getattr(object, names().requires_grad, py::none()).is(py::bool_(true))) {
    return true;
  }
  const py::object is_neg = py::getattr(object, names().is_neg, py::none());
  return !is_neg.is_none() && !is_neg().is(py::bool_(false));
}

// Whether the sizes may be read and multiplied. Producers are other people's code.
bool is_sound(const abi::Tensor& tensor) {
  if (tensor.rank < 0 || tensor.rank > max_rank) return false;
  if (tensor.rank > 0 && tensor.shape == nullptr) return false;
  std::int64_t elements = 1;
  bool empty = false;
  for (std::int32_t axis = 0; axis < tensor.rank; ++axis) {
    const std::int64_t size = tensor.shape[axis];
    if (size < 0) return false;
    empty = empty || size == 0;
    if (!empty && __builtin_mul_overflow(elements, size, &elements)) return false;
  }
  return empty || tensor.data != nullptr;
}

std::vector<std::int64_t> c_strides(const abi::Tensor& tensor) {
  std::vector<std::int64_t> strides(static_cast<std::size_t>(tensor.rank), 1);
  for (std::size_t axis = strides.size(); axis-- > 1;) {
    // Empty tensors' sizes are not bounded together, and their strides are never walked.
    if (__builtin_mul_overflow(strides[axis], tensor.shape[axis], &strides[axis - 1])) {
      strides[axis - 1] = 0;
    }
  }
  return strides;
}

// Valid as long as the tensor is, which must be sound and have strides.
std::optional<View> view_of(const abi::Tensor& tensor, const bool writeable) {
  const std::optional<DataType> type = type_of(tensor.type);
  if (!type || !is_host(tensor.device)) return std::nullopt;
  static_assert(sizeof(py::ssize_t) == sizeof(std::int64_t));
  View v;
  v.type = *type;
  v.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  v.rank = tensor.rank;
  v.shape = reinterpret_cast<const py::ssize_t*>(tensor.shape);
  v.strides = reinterpret_cast<const py::ssize_t*>(tensor.strides);
  v.item_stride = 1;
  v.writeable = writeable;
  return v;
}

// Whatever another library's code does or raises: nothing, or what it gave. Interrupts go through.
template <class Function>
auto tried(const Function& function) -> decltype(function()) {
  try {
    return function();
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;
  } catch (const py::cast_error&) {
  }
  return std::nullopt;
}

py::object dlpack_capsule(const py::handle object) {
  const py::object dlpack = object.attr("__dlpack__");
  try {
    return dlpack(py::arg("max_version") = py::make_tuple(1, 0));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    return dlpack();  // from before the argument was
  }
}

// What a capsule holds, borrowed from it. An unversioned one cannot say whether it may be written
// to; NumPy takes it for a no as well.
struct Lent {
  abi::Tensor tensor;
  bool writeable = false;
};

std::optional<Lent> lent_by(const py::object& capsule) {
  if (PyCapsule_IsValid(capsule.ptr(), abi::Versioned::name)) {
    const auto* const managed = static_cast<const abi::Versioned*>(
        PyCapsule_GetPointer(capsule.ptr(), abi::Versioned::name));
    if (managed->version.major != 1) return std::nullopt;
    return Lent{managed->tensor, (managed->flags & (abi::read_only | abi::is_copied)) == 0};
  }
  if (PyCapsule_IsValid(capsule.ptr(), abi::Unversioned::name)) {
    return Lent{static_cast<const abi::Unversioned*>(
                    PyCapsule_GetPointer(capsule.ptr(), abi::Unversioned::name))
                    ->tensor};
  }
  return std::nullopt;
}

std::optional<py::array> array_by_capsule(const py::handle object) {
  if (!py::hasattr(py::type::handle_of(object), "__dlpack__")) return std::nullopt;
  const auto [device, id] =
      py::cast<std::tuple<std::int32_t, std::int32_t>>(object.attr("__dlpack_device__")());
  if (!is_host({device, id})) return std::nullopt;
  // The capsule is left unused: it stays the owner, and frees what it holds when it goes.
  const py::object capsule = dlpack_capsule(object);
  std::optional<Lent> lent = lent_by(capsule);
  if (!lent || !is_sound(lent->tensor)) return std::nullopt;
  std::vector<std::int64_t> strides;
  if (lent->tensor.strides == nullptr) {
    strides = c_strides(lent->tensor);
    lent->tensor.strides = strides.data();
  }
  const std::optional<View> v = view_of(lent->tensor, lent->writeable);
  return v ? std::make_optional(array_over(*v, capsule)) : std::nullopt;
}

}  // namespace

const abi::ExchangeApi* exchange_api(const py::handle object) {
  const py::object capsule =
      py::getattr(py::type::handle_of(object), names().exchange_api, py::none());
  if (!PyCapsule_IsValid(capsule.ptr(), abi::ExchangeApi::name)) return nullptr;
  auto api = static_cast<const abi::ExchangeApi*>(
      PyCapsule_GetPointer(capsule.ptr(), abi::ExchangeApi::name));
  while (api != nullptr && api->version.major != 1) api = api->previous;
  return api;
}

std::optional<View> borrow(const py::handle object, const RequiresGrad requires_grad) {
  return tried([&]() -> std::optional<View> {
    const abi::ExchangeApi* const api = exchange_api(object);
    if (api == nullptr || api->borrow_object == nullptr) return std::nullopt;
    if (is_more_than_memory(object, requires_grad)) return std::nullopt;
    abi::Tensor tensor{};
    if (api->borrow_object(object.ptr(), &tensor) != 0) {
      if (PyErr_Occurred() != nullptr) throw py::error_already_set();
      return std::nullopt;
    }
    const bool has_strides = tensor.rank == 0 || tensor.strides != nullptr;
    return has_strides && is_sound(tensor) ? view_of(tensor, true) : std::nullopt;
  });
}

std::optional<py::array> import_array(const py::handle object) {
  if (py::isinstance<py::array>(object)) return py::reinterpret_borrow<py::array>(object);
  return tried([&]() -> std::optional<py::array> {
    if (const std::optional<View> v = borrow(object, RequiresGrad::rejected)) {
      return array_over(*v, object);
    }
    if (is_more_than_memory(object, RequiresGrad::rejected)) return std::nullopt;
    return array_by_capsule(object);
  });
}

std::optional<std::string> dlpack_type(const py::handle object) {
  const py::object capsule = dlpack_capsule(object);
  const std::optional<Lent> lent = lent_by(capsule);
  if (!lent) return std::nullopt;
  const auto [code, bits, lanes] = lent->tensor.type;
  constexpr std::array words = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  if (code >= words.size()) return std::nullopt;
  const std::string times = lanes == 1 ? "" : "x" + std::to_string(lanes);
  return words[code] + (code == abi::boolean ? "" : std::to_string(bits)) + times;
}

}  // namespace onedsl
