#include "dlpack.hpp"

#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "bind.hpp"

namespace py = pybind11;

namespace onedsl {
namespace {

// ---- The protocol's binary interface, version 1 ----

namespace abi {

struct Version {
  std::uint32_t major, minor;
};
struct Device {
  std::int32_t type, id;
};
struct Type {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};
struct Tensor {
  void* data;
  Device device;
  std::int32_t rank;
  Type type;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; before version 1.2, null for C order
  std::uint64_t byte_offset;
};
struct Unversioned {
  static constexpr const char* name = "dltensor";
  Tensor tensor;
  void* context;
  void (*deleter)(Unversioned*);
};
struct Versioned {
  static constexpr const char* name = "dltensor_versioned";
  Version version;
  void* context;
  void (*deleter)(Versioned*);
  std::uint64_t flags;
  Tensor tensor;
};
constexpr std::uint64_t read_only = 1, is_copied = 2;  // in flags

// What a library offers as the attribute __dlpack_c_exchange_api__ of its array type, so that no
// capsule need be made: a fiftieth of the time of __dlpack__ with PyTorch.
struct ExchangeApi {
  static constexpr const char* name = "dlpack_exchange_api";
  Version version;
  ExchangeApi* previous;
  void* allocate;
  void* from_object;
  int (*to_object)(Versioned*, void**);  // takes the tensor over
  int (*borrow_object)(void*, Tensor*);  // may be null
  void* current_stream;
};

}  // namespace abi

// Memory that the CPU reads and writes: its own, and what CUDA and ROCm pin.
bool is_host(const abi::Device device) {
  return device.type == 1 || device.type == 3 || device.type == 11;
}

std::optional<DataType> type_of(const abi::Type type) {
  if (type.lanes != 1) return std::nullopt;
  if (type.code == 2 && type.bits == 32) return DataType::f32;
  if (type.code == 4 && type.bits == 16) return DataType::bf16;
  if (type.code == 2 && type.bits == 16) return DataType::f16;
  return std::nullopt;
}

abi::Type type_of(const DataType type) {
  return {static_cast<std::uint8_t>(type == DataType::bf16 ? 4 : 2),
          static_cast<std::uint8_t>(8 * size_of(type)), 1};
}

// Python's strings for what every call looks up.
struct Names {
  py::str exchange_api = "__dlpack_c_exchange_api__";
  py::str requires_grad = "requires_grad";
  py::str is_neg = "is_neg";
};

const Names& names() {
  // Never destroyed: the interpreter is gone by the time that static objects are.
  static const Names* const leaked = std::make_unique<Names>().release();
  return *leaked;
}

const abi::ExchangeApi* exchange_api(const py::handle object) {
  const py::object capsule =
      py::getattr(py::type::handle_of(object), names().exchange_api, py::none());
  if (!PyCapsule_IsValid(capsule.ptr(), abi::ExchangeApi::name)) return nullptr;
  auto api = static_cast<const abi::ExchangeApi*>(
      PyCapsule_GetPointer(capsule.ptr(), abi::ExchangeApi::name));
  while (api && api->version.major != 1) api = api->previous;
  return api;
}

// ---- In ----

// PyTorch's tensors may stand for more than their memory: for a history, or for its negative.
bool is_more_than_memory(const py::handle object, const History history) {
  if (history == History::refused &&
      py::getattr(object, names().requires_grad, py::none()).is(py::bool_(true))) {
    return true;
  }
  const py::object is_neg = py::getattr(object, names().is_neg, py::none());
  return !is_neg.is_none() && !is_neg().is(py::bool_(false));
}

// Valid as long as the tensor is, which must have strides.
std::optional<View> view_of(const abi::Tensor& tensor, const bool writeable) {
  const std::optional<DataType> type = type_of(tensor.type);
  if (!type || !is_host(tensor.device) || tensor.rank < 0) return std::nullopt;
  static_assert(sizeof(py::ssize_t) == sizeof(std::int64_t));
  View v;
  v.type = *type;
  v.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  v.rank = tensor.rank;
  v.shape = reinterpret_cast<const py::ssize_t*>(tensor.shape);
  v.strides = reinterpret_cast<const py::ssize_t*>(tensor.strides);
  v.item_stride = 1;
  v.writeable = writeable;
  v.foreign = true;
  return v.size() == 0 || tensor.data ? std::make_optional(v) : std::nullopt;
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

std::optional<py::array> array_by_capsule(const py::handle object) {
  if (!py::hasattr(py::type::handle_of(object), "__dlpack__")) return std::nullopt;
  const auto [device, id] =
      py::cast<std::tuple<std::int32_t, std::int32_t>>(object.attr("__dlpack_device__")());
  if (!is_host({device, id})) return std::nullopt;
  // The capsule is left unused: it stays the owner, and frees what it holds when it goes.
  const py::object capsule = dlpack_capsule(object);
  abi::Tensor tensor{};
  bool writeable = false;  // an unversioned capsule cannot say; NumPy takes it for a no as well
  if (PyCapsule_IsValid(capsule.ptr(), abi::Versioned::name)) {
    const auto* const managed = static_cast<const abi::Versioned*>(
        PyCapsule_GetPointer(capsule.ptr(), abi::Versioned::name));
    if (managed->version.major != 1) return std::nullopt;
    tensor = managed->tensor;
    writeable = (managed->flags & (abi::read_only | abi::is_copied)) == 0;
  } else if (PyCapsule_IsValid(capsule.ptr(), abi::Unversioned::name)) {
    tensor = static_cast<const abi::Unversioned*>(
                 PyCapsule_GetPointer(capsule.ptr(), abi::Unversioned::name))
                 ->tensor;
  } else {
    return std::nullopt;
  }
  std::vector<std::int64_t> steps;
  if (!tensor.strides && tensor.rank > 0) {
    steps.assign(static_cast<std::size_t>(tensor.rank), 1);
    for (std::size_t axis = steps.size() - 1; axis-- > 0;) {
      steps[axis] = steps[axis + 1] * tensor.shape[axis + 1];
    }
    tensor.strides = steps.data();
  }
  const std::optional<View> v = view_of(tensor, writeable);
  return v ? std::make_optional(array_over(*v, capsule)) : std::nullopt;
}

}  // namespace

std::optional<View> borrow(const py::handle object, const History history) {
  return tried([&]() -> std::optional<View> {
    const abi::ExchangeApi* const api = exchange_api(object);
    if (!api || !api->borrow_object || is_more_than_memory(object, history)) return std::nullopt;
    abi::Tensor tensor{};
    if (api->borrow_object(object.ptr(), &tensor) != 0) throw py::error_already_set();
    return view_of(tensor, true);
  });
}

std::optional<py::array> import_array(const py::handle object) {
  if (py::isinstance<py::array>(object)) return py::reinterpret_borrow<py::array>(object);
  if (const std::optional<View> v = borrow(object, History::refused)) return array_over(*v, object);
  return tried([&]() -> std::optional<py::array> {
    if (is_more_than_memory(object, History::refused)) return std::nullopt;
    return array_by_capsule(object);
  });
}

namespace {

// ---- Out ----

// One allocation that holds the tensor, its sizes and a reference to the array.
template <class Managed>
struct Shipment {
  Managed managed{};
  std::vector<std::int64_t> shape, strides;
  PyObject* array = nullptr;

  // Called by the new owner, with or without the GIL.
  static void free(Managed* const managed) {
    const std::unique_ptr<Shipment> self(static_cast<Shipment*>(managed->context));
    if (!Py_IsInitialized()) return;
    const py::gil_scoped_acquire acquire;
    Py_DECREF(self->array);
  }
};

template <class Managed>
Managed* ship(py::array array) {
  const View v = view(array).value();
  auto shipment = std::make_unique<Shipment<Managed>>();
  shipment->shape.assign(v.shape, v.shape + v.rank);
  for (py::ssize_t axis = 0; axis < v.rank; ++axis) {
    shipment->strides.push_back(v.strides[axis] / v.item_stride);
  }
  Managed& managed = shipment->managed;
  if constexpr (std::is_same_v<Managed, abi::Versioned>) managed.version = {1, 0};
  managed.tensor = {v.size() == 0 ? nullptr : v.data,
                    {1, 0},
                    static_cast<std::int32_t>(v.rank),
                    type_of(v.type),
                    shipment->shape.data(),
                    shipment->strides.data(),
                    0};
  managed.context = shipment.get();
  managed.deleter = &Shipment<Managed>::free;
  shipment->array = array.release().ptr();
  return &shipment.release()->managed;
}

template <class Managed>
py::object capsule_of(py::array array) {
  Managed* const managed = ship<Managed>(std::move(array));
  PyObject* const capsule = PyCapsule_New(managed, Managed::name, [](PyObject* self) {
    if (!PyCapsule_IsValid(self, Managed::name)) return;  // used: its user frees it
    auto* const unused = static_cast<Managed*>(PyCapsule_GetPointer(self, Managed::name));
    unused->deleter(unused);
  });
  if (!capsule) {
    managed->deleter(managed);
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(capsule);
}

// What a from_dlpack takes. NumPy's own arrays do not export bf16.
struct Producer {
  py::array array;
};

// from_dlpack of the library that an object is from, or None.
py::object importer_for(const py::handle object) {
  const py::object none = py::none();
  if (py::hasattr(object, "__array_namespace__")) {
    return py::getattr(object.attr("__array_namespace__")(), "from_dlpack", none);
  }
  const auto module = py::str(py::type::handle_of(object).attr("__module__")).cast<std::string>();
  if (module == "__main__") return none;  // what is imported there is not the library's own
  const py::object package = py::module_::import("sys").attr("modules").attr("get")(
      module.substr(0, module.find('.')), none);
  return py::getattr(package, "from_dlpack", none);
}

}  // namespace

py::object export_array(py::array array, const py::handle like) {
  if (py::isinstance<py::array>(like)) return std::move(array);
  if (const abi::ExchangeApi* const api = exchange_api(like)) {
    void* object = nullptr;
    if (api->to_object(ship<abi::Versioned>(std::move(array)), &object) != 0) {
      throw py::error_already_set();
    }
    return py::reinterpret_steal<py::object>(static_cast<PyObject*>(object));
  }
  const py::object importer = importer_for(like);
  return importer.is_none() ? std::move(array) : importer(Producer{std::move(array)});
}

void bind_dlpack(py::module_& module) {
  py::class_<Producer>(module, "Producer")
      .def(
          "__dlpack__",
          [](const Producer& self, const py::object&, const py::object& max_version,
             const py::object&, const py::object&) {
            const bool versioned =
                !max_version.is_none() && py::cast<int>(max_version[py::int_(0)]) >= 1;
            return versioned ? capsule_of<abi::Versioned>(self.array)
                             : capsule_of<abi::Unversioned>(self.array);
          },
          py::kw_only(), py::arg("stream") = py::none(), py::arg("max_version") = py::none(),
          py::arg("dl_device") = py::none(), py::arg("copy") = py::none())
      .def("__dlpack_device__", [](const Producer&) { return py::make_tuple(1, 0); });
  module.def("import_array", &import_array);
  module.def("export_array", &export_array);
}

}  // namespace onedsl
