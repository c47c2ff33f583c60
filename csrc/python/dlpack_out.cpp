#include <pybind11/gil_safe_call_once.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

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
  const py::handle found = PyDict_GetItemString(PyImport_GetModuleDict(), name);
  return found ? py::reinterpret_borrow<py::object>(found) : py::none();
}

py::object optional_attribute(const py::handle object, const py::handle name) {
  if (PyObject* const found = PyObject_GetAttr(object.ptr(), name.ptr())) {
    return py::reinterpret_steal<py::object>(found);
  }
  if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) throw py::error_already_set();
  PyErr_Clear();
  return py::none();
}

py::object call_method(const py::handle object, const py::handle name) {
  PyObject* const result = PyObject_CallMethodNoArgs(object.ptr(), name.ptr());
  if (result == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(result);
}

const PyTorch* pytorch_of(const py::handle object) {
  const py::object torch = imported_module("torch");
  // Another thread may be importing PyTorch, which has no names yet.
  const py::object tensor_type = optional_attribute(torch, py::str("Tensor"));
  if (tensor_type.is_none() || !py::isinstance(object, tensor_type)) return nullptr;
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<PyTorch> stored;
  return &stored
              .call_once_and_store_result([&] {
                PyTorch pytorch;
                pytorch.increment_version =
                    torch.attr("autograd").attr("graph").attr("increment_version");
                pytorch.empty_strided = torch.attr("empty_strided");
                for (const char* const type : {"float32", "bfloat16", "float16"}) {
                  pytorch.options.push_back(
                      py::dict(py::arg("dtype") = torch.attr(type),
                               py::arg("device") = torch.attr("device")("cpu")));
                }
                return pytorch;
              })
              .get_stored();
}

py::object empty_tensor(const PyTorch& pytorch, const View& like) {
  py::tuple shape(like.rank);
  py::tuple strides(like.rank);
  for (py::ssize_t axis = 0; axis < like.rank; ++axis) {
    const auto index = static_cast<std::size_t>(axis);
    shape[index] = py::int_(like.shape[axis]);
    strides[index] = py::int_(like.strides[axis] / like.item_stride);
  }
  PyObject* const tensor =
      PyObject_Call(pytorch.empty_strided.ptr(), py::make_tuple(shape, strides).ptr(),
                    pytorch.options[static_cast<std::size_t>(like.type)].ptr());
  if (tensor == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(tensor);
}

void mark_written(const py::sequence& out) {
  const PyTorch* pytorch = nullptr;
  py::list tensors;
  for (const py::handle array : out) {
    const PyTorch* const found = pytorch_of(array);
    if (found == nullptr) continue;
    pytorch = found;
    tensors.append(array);
  }
  if (pytorch != nullptr) pytorch->increment_version(tensors);
}

py::object Producer::capsule(const bool versioned) const {
  return versioned ? capsule_of<abi::Versioned>(array) : capsule_of<abi::Unversioned>(array);
}

py::object export_array(py::object array, const py::handle like) {
  if (!py::isinstance<py::array>(array) || py::isinstance<py::array>(like)) return array;
  const py::object importer = importer_for(like);
  return importer.is_none() ? array : importer(Producer{std::move(array)});
}

}  // namespace onedsl
