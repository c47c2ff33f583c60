#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>

#include "../core/operation.hpp"
#include "../core/types.hpp"

// Enumerators of csrc/core are strings in Python: their names.
namespace onedsl {

inline const char* id_of(const Signature& row) noexcept { return row.id; }
inline const char* id_of(const char* const name) noexcept { return name; }

}  // namespace onedsl

namespace pybind11::detail {

// `rows` has a name for each enumerator.
template <class Enum, const auto& rows>
struct EnumCaster {
  PYBIND11_TYPE_CASTER(Enum, const_name("str"));

  bool load(const handle from, bool) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      value = static_cast<Enum>(i);
      if (str(onedsl::id_of(rows[i])).equal(from)) return true;
    }
    return false;
  }
  static handle cast(const Enum from, return_value_policy, handle) {
    return str(onedsl::id_of(rows[static_cast<std::size_t>(from)])).release();
  }
};

template <>
struct type_caster<onedsl::DataType> : EnumCaster<onedsl::DataType, onedsl::type_names> {};
template <>
struct type_caster<onedsl::Statistics> : EnumCaster<onedsl::Statistics, onedsl::statistics_names> {
};
template <>
struct type_caster<onedsl::Operation> : EnumCaster<onedsl::Operation, onedsl::signatures::all> {};

}  // namespace pybind11::detail
