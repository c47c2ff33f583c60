#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "dlpack.hpp"
#include "dlpack_abi.hpp"

namespace py = pybind11;

namespace onedsl {
namespace {

abi::Type type_of(const DataType type) {
  return {type == DataType::bf16 ? abi::bfloat : abi::floating,
          static_cast<std::uint8_t>(8 * size_of(type)), 1};
}

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
                    {abi::cpu, 0},
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
  if (capsule == nullptr) {
    managed->deleter(managed);
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(capsule);
}

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

py::object Producer::capsule(const bool versioned) const {
  return versioned ? capsule_of<abi::Versioned>(array) : capsule_of<abi::Unversioned>(array);
}

py::object export_array(py::array array, const py::handle like) {
  if (py::isinstance<py::array>(like)) return std::move(array);
  const abi::ExchangeApi* const api = exchange_api(like);
  if (api != nullptr && api->to_object != nullptr) {
    void* object = nullptr;
    const int failed = api->to_object(ship<abi::Versioned>(std::move(array)), &object);
    if (failed != 0 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    if (failed != 0 || object == nullptr) {
      throw std::runtime_error(
          "a library made no array of a result, and did not say why: give out= to have it written "
          "to an array of yours");
    }
    return py::reinterpret_steal<py::object>(static_cast<PyObject*>(object));
  }
  const py::object importer = importer_for(like);
  return importer.is_none() ? std::move(array) : importer(Producer{std::move(array)});
}

}  // namespace onedsl
