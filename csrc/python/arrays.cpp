#include "arrays.hpp"

#include <pybind11/gil_safe_call_once.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <stdexcept>
#include <vector>

#include "../core/geometry.hpp"
#include "dlpack.hpp"

namespace py = pybind11;

namespace onedsl {
namespace {

// NumPy's descriptor objects identify the types: comparing pointers is fast, and arrays of the
// other byte order have other descriptors.
struct Types {
  py::object ndarray = py::module_::import("numpy").attr("ndarray");
  // By DataType.
  std::array<py::dtype, 3> dtypes = {
      py::dtype::of<float>(),
      py::dtype::from_args(py::module_::import("ml_dtypes").attr("bfloat16")),
      py::dtype("float16"),
  };
};

const Types& types() {
  // Initialized once, without a lock that is held while Python code runs. Never destroyed, because
  // static objects are destroyed after the interpreter.
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<Types> stored;
  return stored.call_once_and_store_result([] { return Types{}; }).get_stored();
}

std::optional<View> view_of_numpy(const py::array& array) {
  const auto& known = types().dtypes;
  const py::dtype dtype = array.dtype();
  const auto* const found =
      std::find_if(known.begin(), known.end(), [&](const py::dtype& own) { return dtype.is(own); });
  if (found == known.end()) {
    const bool is_spelled_otherwise = std::any_of(
        known.begin(), known.end(), [&](const py::dtype& own) { return dtype.num() == own.num(); });
    if (is_spelled_otherwise || dtype.byteorder() == '>') return std::nullopt;
  }
  View result;
  result.type = static_cast<DataType>(found - known.begin());
  result.data = static_cast<char*>(const_cast<void*>(array.data()));
  result.rank = array.ndim();
  result.shape = array.shape();
  result.strides = array.strides();
  result.item_stride = array.itemsize();
  result.writeable = array.writeable();
  result.is_numpy = true;
  return result;
}

const py::dtype& dtype_of(const DataType type) {
  return types().dtypes[static_cast<std::size_t>(type)];
}

// Strides that are not used, of axes of extent 1 and of empty arrays, may overflow in bytes.
Sizes byte_strides(const View& v) {
  const auto item = static_cast<py::ssize_t>(size_of(v.type));
  Sizes strides(static_cast<std::size_t>(v.rank), item);
  for (std::size_t axis = 0; axis < strides.size(); ++axis) {
    const py::ssize_t steps = v.strides[axis] / v.item_stride;
    if (__builtin_mul_overflow(steps, item, &strides[axis])) strides[axis] = item;
  }
  return strides;
}

}  // namespace

std::optional<View> view(const py::handle object) {
  const bool is_ndarray =
      reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())) == types().ndarray.ptr();
  if (!is_ndarray && py::isinstance<py::array>(object)) return std::nullopt;
  return is_ndarray ? view_of_numpy(py::reinterpret_borrow<py::array>(object)) : borrow(object);
}

py::array array_over(const View& v, const py::handle owner) {
  py::array array(dtype_of(v.type), std::vector<py::ssize_t>(v.shape, v.shape + v.rank),
                  byte_strides(v), v.size() == 0 ? nullptr : v.data, owner);
  if (!v.writeable) array.attr("setflags")(py::arg("write") = false);
  return array;
}

py::array at_cache_line(const py::array& memory, const DataType type, const Sizes& shape,
                        const Sizes& strides) {
  const auto* const begin = static_cast<const char*>(memory.data());
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  const std::size_t skipped = (cache_line - address % cache_line) % cache_line;
  if (strides.size() != shape.size()) {
    throw std::invalid_argument("onedsl._core.at_cache_line: shape and strides must match");
  }
  View v{type, nullptr, static_cast<std::ptrdiff_t>(shape.size()), shape.data(), strides.data()};
  v.item_stride = static_cast<std::ptrdiff_t>(size_of(type));
  const std::optional<Memory> needed = v.memory();  // from address 0
  if (!needed || needed->begin > needed->end ||
      needed->end + skipped > static_cast<std::size_t>(memory.nbytes())) {
    throw std::invalid_argument("onedsl._core.at_cache_line: memory must hold the array");
  }
  return {dtype_of(type), shape, strides, begin + skipped, memory};
}

py::array empty_like(const View& like, const bool aligned) {
  Sizes shape(like.shape, like.shape + like.rank);
  if (!aligned) return {dtype_of(like.type), std::move(shape), byte_strides(like)};
  const py::array_t<char> memory(static_cast<py::ssize_t>(like.bytes() + cache_line));
  return at_cache_line(memory, like.type, shape, byte_strides(like));
}

}  // namespace onedsl
