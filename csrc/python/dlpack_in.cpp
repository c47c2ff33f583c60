#include <pybind11/gil_safe_call_once.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "../core/geometry.hpp"
#include "dlpack.hpp"
#include "dlpack_abi.hpp"

namespace py = pybind11;

namespace onedsl {
namespace {

bool is_host(const abi::Device device) {
  const auto& types = abi::host_devices;
  return std::find(types.begin(), types.end(), device.type) != types.end();
}

std::optional<DataType> type_of(const abi::Type type) {
  if (type.lanes != 1) return std::nullopt;
  if (type.code == abi::floating && type.bits == 32) return DataType::f32;
  if (type.code == abi::bfloat && type.bits == 16) return DataType::bf16;
  if (type.code == abi::floating && type.bits == 16) return DataType::f16;
  return std::nullopt;
}

// Interned names of the attributes that every call reads.
struct InternedNames {
  py::str exchange_api = "__dlpack_c_exchange_api__";
  py::str requires_grad = "requires_grad";
  py::str is_neg = "is_neg";
  py::str untyped_storage = "untyped_storage";
  py::str nbytes = "nbytes";
  py::str storage_offset = "storage_offset";
};

const InternedNames& names() {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<InternedNames> stored;
  return stored.call_once_and_store_result([] { return InternedNames{}; }).get_stored();
}

// Returns what a PyTorch tensor means beyond its memory, a reason of import_array(), or null: it is
// part of a graph, or its values are the negative of those in memory.
const char* more_than_memory(const py::handle object) {
  if (optional_attribute(object, names().requires_grad).is(py::bool_(true))) return "requires_grad";
  const py::object is_neg = optional_attribute(object, names().is_neg);
  if (is_neg.is_none() || call_method(object, names().is_neg).is(py::bool_(false))) return nullptr;
  return "negative";
}

// Returns the bytes of a PyTorch tensor's storage, which may have been made too small for the
// tensor, and the number of elements in it before the tensor. DLPack does not show them.
std::pair<std::size_t, std::size_t> storage_of(const py::handle tensor) {
  const py::object storage = call_method(tensor, names().untyped_storage);
  return {call_method(storage, names().nbytes).cast<std::size_t>(),
          call_method(tensor, names().storage_offset).cast<std::size_t>()};
}

// Returns whether the sizes can be read, and multiplied without overflow: producers may have bugs.
bool is_valid(const abi::Tensor& tensor) {
  if (tensor.rank < 0 || tensor.rank > max_rank) return false;
  if (tensor.rank > 0 && tensor.shape == nullptr) return false;
  std::int64_t elements = 1;
  bool empty = false;
  for (std::int32_t axis = 0; axis < tensor.rank; ++axis) {
    const std::int64_t size = tensor.shape[axis];
    if (size < 0) return false;
    empty = empty || size == 0;
    // As in NumPy, a size of 0 counts as 1.
    if (size > 0 && __builtin_mul_overflow(elements, size, &elements)) return false;
  }
  return empty || tensor.data != nullptr;
}

// The view is valid as long as the tensor, which must be valid and have strides.
std::optional<View> view_of(const abi::Tensor& tensor, const bool writeable) {
  const std::optional<DataType> type = type_of(tensor.type);
  if (!type || !is_host(tensor.device)) return std::nullopt;
  static_assert(sizeof(py::ssize_t) == sizeof(std::int64_t));
  View v;
  v.type = *type;
  if (tensor.data != nullptr) v.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  v.rank = tensor.rank;
  v.shape = reinterpret_cast<const py::ssize_t*>(tensor.shape);
  v.strides = reinterpret_cast<const py::ssize_t*>(tensor.strides);
  v.item_stride = 1;
  v.writeable = writeable;
  return v.memory() ? std::make_optional(v) : std::nullopt;
}

// Throws again what must not become an error of onedsl's: MemoryError, KeyboardInterrupt and the
// like.
void propagate(py::error_already_set& error) {
  if (!error.matches(PyExc_Exception) || error.matches(PyExc_MemoryError)) throw;
}

py::object dlpack_capsule(const py::handle object) {
  const py::object dlpack = object.attr("__dlpack__");
  try {
    return dlpack(py::arg("max_version") = py::make_tuple(1, 0));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    return dlpack();  // the library does not have the argument yet
  }
}

// Returns the struct in a capsule that has its name, or null.
template <class Struct>
const Struct* struct_in(const py::object& capsule) {
  if (!PyCapsule_IsValid(capsule.ptr(), Struct::name)) return nullptr;
  return static_cast<const Struct*>(PyCapsule_GetPointer(capsule.ptr(), Struct::name));
}

py::object array_by_capsule(const py::handle object) {
  const auto [device, id] =
      py::cast<std::tuple<std::int32_t, std::int32_t>>(object.attr("__dlpack_device__")());
  if (!is_host({device, id})) return py::str("device");
  // The capsule is not marked as used, so it remains the owner of the memory.
  const py::object capsule = dlpack_capsule(object);
  const auto* const versioned = struct_in<abi::Versioned>(capsule);
  const auto* const unversioned = struct_in<abi::Unversioned>(capsule);
  if (versioned == nullptr && unversioned == nullptr) return py::str("invalid");
  if (versioned != nullptr && versioned->version.major != 1) return py::str("invalid");
  // An unversioned capsule has no read-only flag; as in NumPy it counts as read-only.
  const bool writeable =
      versioned != nullptr && (versioned->flags & (abi::read_only | abi::is_copied)) == 0;
  abi::Tensor tensor = versioned != nullptr ? versioned->tensor : unversioned->tensor;
  if (tensor.rank > max_rank) return py::str("rank");
  if (!is_valid(tensor)) return py::str("invalid");
  if (!type_of(tensor.type)) return py::str("type");
  std::vector<std::int64_t> strides;
  if (tensor.strides == nullptr) {
    strides = c_strides(tensor.rank, tensor.shape);
    tensor.strides = strides.data();
  }
  const std::optional<View> v = view_of(tensor, writeable);
  if (!v) return py::str("invalid");
  return array_over(*v, capsule);
}

// The C functions of a library, or null, and what owns them: another thread may replace the
// attribute that publishes them.
struct ExchangeFunctions {
  py::object owner;
  const abi::ExchangeApi* api;
};

ExchangeFunctions exchange_functions(const py::handle type) {
  py::object capsule = optional_attribute(type, names().exchange_api);
  const auto* api = struct_in<abi::ExchangeApi>(capsule);
  while (api != nullptr && api->version.major != 1) api = api->previous;
  return {std::move(capsule), api};
}

// Returns whether the functions are PyTorch's, whose tensors are always writable. The exchange API
// has no read-only flag.
bool is_of_pytorch(const abi::ExchangeApi* const api) {
  static std::atomic<const abi::ExchangeApi*> pytorch{nullptr};
  if (api == pytorch) return true;
  const py::object tensor_type = optional_attribute(imported_module("torch"), py::str("Tensor"));
  if (exchange_functions(tensor_type).api != api) return false;
  pytorch = api;
  return true;
}

}  // namespace

std::optional<View> borrow(const py::handle object) {
  try {
    const auto [capsule, api] = exchange_functions(py::type::handle_of(object));
    if (api == nullptr || api->borrow_object == nullptr) return std::nullopt;
    if (more_than_memory(object) != nullptr) return std::nullopt;
    const bool is_pytorch = is_of_pytorch(api);
    const auto [bytes, offset] =
        is_pytorch ? storage_of(object) : std::pair(unknown_bytes, std::size_t{0});
    // From here on no Python code runs, which could change the tensor.
    abi::Tensor tensor{};
    if (api->borrow_object(object.ptr(), &tensor) != 0) {
      if (PyErr_Occurred() != nullptr) throw py::error_already_set();
      return std::nullopt;
    }
    const bool has_strides = tensor.rank == 0 || tensor.strides != nullptr;
    if (!has_strides || !is_valid(tensor)) return std::nullopt;
    std::optional<View> v = view_of(tensor, is_pytorch);
    if (v) v->bytes_from_data = bytes - std::min(bytes, offset * size_of(v->type));
    return v;
  } catch (py::error_already_set& error) {
    propagate(error);
  } catch (const py::cast_error&) {
  }
  return std::nullopt;
}

py::object import_array(const py::handle object) {
  if (py::isinstance<py::array>(object)) return py::reinterpret_borrow<py::object>(object);
  try {
    const std::optional<View> v = borrow(object);
    if (v && !v->holds(*v->memory())) return py::str("memory");
    if (v && v->writeable) return array_over(*v, object);
    const py::handle type = py::type::handle_of(object);
    if (optional_attribute(type, py::str("__dlpack__")).is_none()) return py::str("no_dlpack");
    if (const char* const meaning = more_than_memory(object)) return py::str(meaning);
    return array_by_capsule(object);
  } catch (py::error_already_set& error) {
    propagate(error);
    return error.value();
  } catch (const py::cast_error&) {
    return py::str("invalid");
  }
}

}  // namespace onedsl
