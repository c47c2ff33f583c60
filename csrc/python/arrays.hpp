#pragma once

#include <pybind11/numpy.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "../core/view.hpp"

// Views of arrays. Nothing here is specific to batch normalization.
namespace onedsl {

using Sizes = std::vector<pybind11::ssize_t>;

// Returns a view of a numpy.ndarray in native byte order (not of a subclass), or of a tensor that
// can be borrowed; nullopt for anything else.
std::optional<View> view(pybind11::handle object);

// Returns a NumPy array of the same memory, which keeps `owner` alive.
pybind11::array array_over(const View& v, pybind11::handle owner);

// Returns an array in memory of bytes, which must have `cache_line` bytes more than the array
// needs. Strides are in bytes.
pybind11::array at_cache_line(const pybind11::array& memory, DataType type, const Sizes& shape,
                              const Sizes& strides);

// Returns an uninitialized array with the shape and strides of `like`, or of a dense copy. It may
// begin at a cache line, as JAX requires of memory that it does not copy.
pybind11::array empty_like(const View& like, bool is_dense, bool aligned);

}  // namespace onedsl

// Types are strings in Python: their names.
template <>
struct pybind11::detail::type_caster<onedsl::DataType> {
  PYBIND11_TYPE_CASTER(onedsl::DataType, const_name("str"));

  bool load(const handle from, bool) {
    for (std::size_t i = 0; i < onedsl::type_names.size(); ++i) {
      value = static_cast<onedsl::DataType>(i);
      if (str(onedsl::type_names[i]).equal(from)) return true;
    }
    return false;
  }
  static handle cast(const onedsl::DataType from, return_value_policy, handle) {
    return str(onedsl::name_of(from)).release();
  }
};
