#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../core/memory_reserve.hpp"
#include "dlpack.hpp"
#include "dlpack_abi.hpp"
#include "gil.hpp"

namespace py = pybind11;

namespace onedsl {
namespace {

abi::Type type_of(const DataType type) {
  return {type == DataType::bf16 ? abi::bfloat : abi::floating,
          static_cast<std::uint8_t>(8 * size_of(type)), 1};
}

// A managed tensor with its sizes and a reference to the array.
template <class Managed>
struct Export {
  Managed managed{};
  std::vector<std::int64_t> shape, strides;
  PyObject* array = nullptr;

  // The deleter. The consumer calls it on any thread, with or without the GIL, perhaps while Python
  // finalizes; if the GIL is not available any more, the array is leaked.
  static void free(Managed* const managed) {
    const std::unique_ptr<Export> self(static_cast<Export*>(managed->context));
    if (!can_acquire_gil()) return;
    const AcquiredGil acquired;
    Py_DECREF(self->array);
  }
};

template <class Managed>
Managed* make_managed(py::array array) {
  const View v = view(array).value();
  auto exported = std::make_unique<Export<Managed>>();
  exported->shape.assign(v.shape, v.shape + v.rank);
  for (py::ssize_t axis = 0; axis < v.rank; ++axis) {
    exported->strides.push_back(v.strides[axis] / v.item_stride);
  }
  Managed& managed = exported->managed;
  if constexpr (std::is_same_v<Managed, abi::Versioned>) managed.version = {1, 0};
  managed.tensor = {v.size() == 0 ? nullptr : v.data,
                    {abi::cpu, 0},
                    static_cast<std::int32_t>(v.rank),
                    type_of(v.type),
                    exported->shape.data(),
                    exported->strides.data(),
                    0};
  managed.context = exported.get();
  managed.deleter = &Export<Managed>::free;
  exported->array = array.release().ptr();
  return &exported.release()->managed;
}

template <class Managed>
py::object capsule_of(py::array array) {
  Managed* const managed = make_managed<Managed>(std::move(array));
  PyObject* const capsule = PyCapsule_New(managed, Managed::name, [](PyObject* self) {
    if (!PyCapsule_IsValid(self, Managed::name))
      return;  // consumed: the consumer calls the deleter
    auto* const unused = static_cast<Managed*>(PyCapsule_GetPointer(self, Managed::name));
    unused->deleter(unused);
  });
  if (capsule == nullptr) {
    managed->deleter(managed);
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(capsule);
}

// Returns from_dlpack of the library of an object, or None.
py::object importer_for(const py::handle object) {
  const py::str from_dlpack = "from_dlpack";
  const py::object space = optional_attribute(object, py::str("__array_namespace__"));
  if (!space.is_none()) return optional_attribute(space(), from_dlpack);
  const auto module = py::str(py::type::handle_of(object).attr("__module__")).cast<std::string>();
  if (module == "__main__") return py::none();  // its from_dlpack may be that of another library
  return optional_attribute(imported_module(module.substr(0, module.find('.')).c_str()),
                            from_dlpack);
}

}  // namespace

py::object imported_module(const char* const name) {
  return py::module_::import("sys").attr("modules").attr("get")(name, py::none());
}

py::object optional_attribute(const py::handle object, const py::handle name) {
  if (PyObject* const found = PyObject_GetAttr(object.ptr(), name.ptr())) {
    return py::reinterpret_steal<py::object>(found);
  }
  if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) throw py::error_already_set();
  PyErr_Clear();
  return py::none();
}

void mark_written(const py::sequence& out) {
  const py::object torch = imported_module("torch");
  // Another thread may be importing PyTorch, which has no names yet.
  const py::object tensor_type = optional_attribute(torch, py::str("Tensor"));
  if (tensor_type.is_none()) return;
  py::list tensors;
  for (const py::handle array : out) {
    if (py::isinstance(array, tensor_type)) tensors.append(array);
  }
  if (tensors.empty()) return;
  torch.attr("autograd").attr("graph").attr("increment_version")(tensors);
}

py::object Producer::capsule(const bool versioned) const {
  return versioned ? capsule_of<abi::Versioned>(array) : capsule_of<abi::Unversioned>(array);
}

py::object export_array(py::array array, const py::handle like) {
  if (py::isinstance<py::array>(like)) return std::move(array);
  const auto [owner, api] = exchange_functions(py::type::handle_of(like));
  if (api != nullptr && api->to_object != nullptr) {
    // PyTorch ends the process if it has no memory for the deleter.
    const MemoryReserve reserve;
    void* object = nullptr;
    const int failed = api->to_object(make_managed<abi::Versioned>(std::move(array)), &object);
    if (failed != 0 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    if (failed != 0 || object == nullptr) {
      throw std::runtime_error(
          "the library of src could not import a result by DLPack, without an error message; pass "
          "out= to have results written to existing arrays");
    }
    return py::reinterpret_steal<py::object>(static_cast<PyObject*>(object));
  }
  const py::object importer = importer_for(like);
  return importer.is_none() ? std::move(array) : importer(Producer{std::move(array)});
}

}  // namespace onedsl
