#pragma once

#include <pybind11/numpy.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "../core/view.hpp"

// Views of arrays. Nothing here is specific to batch normalization.
namespace onedsl {

using Sizes = std::vector<pybind11::ssize_t>;

// Copies of the sizes and strides of some views. Those of an array are freed when Python code sets
// its shape: in another thread, or in the attributes of another argument.
template <std::size_t max_views>
class KeptSizes {
 public:
  KeptSizes() noexcept {}  // NOLINT: leaves the memory unwritten
  KeptSizes(const KeptSizes&) = delete;
  KeptSizes& operator=(const KeptSizes&) = delete;

  // Makes a view use copies. Must be called before any Python code runs. Ranks are at most
  // max_rank: of NumPy's arrays by its own limit, of tensors by the check of DLPack.
  void keep(View& v) noexcept {
    for (const std::ptrdiff_t** const sizes : {&v.shape, &v.strides}) {
      std::copy_n(*sizes, v.rank, next_);
      *sizes = next_;
      next_ += v.rank;
    }
  }

 private:
  std::array<std::ptrdiff_t, 2 * max_views * max_rank> memory_;
  std::ptrdiff_t* next_ = memory_.data();
};

// Returns a view of a numpy.ndarray in native byte order (not of a subclass), or of a tensor that
// can be borrowed; nullopt for anything else. It uses the array's own sizes, see KeptSizes.
std::optional<View> view(pybind11::handle object);

// Returns a NumPy array of the same memory, which keeps `owner` alive.
pybind11::array array_over(const View& v, pybind11::handle owner);

// Returns an array in memory of bytes, which must have `cache_line` bytes more than the array
// needs. Strides are in bytes.
pybind11::array at_cache_line(const pybind11::array& memory, DataType type, const Sizes& shape,
                              const Sizes& strides);

// Returns an uninitialized array with the shape and strides of `like`, which must be dense. It may
// begin at a cache line, as JAX requires of memory that it does not copy.
pybind11::array empty_like(const View& like, bool aligned);

}  // namespace onedsl

// Types are strings in Python: their names.
template <>
struct pybind11::detail::type_caster<onedsl::DataType> {
  PYBIND11_TYPE_CASTER(onedsl::DataType, const_name("str"));

  bool load(const handle from, bool) {
    make_caster<std::string_view> text;
    if (!isinstance<str>(from) || !text.load(from, false)) return false;
    const auto found = onedsl::data_type_of(cast_op<std::string_view>(text));
    value = found.value_or(onedsl::DataType::other);
    return found.has_value();
  }
  static handle cast(const onedsl::DataType from, return_value_policy, handle) {
    return str(onedsl::name_of(from)).release();
  }
};
