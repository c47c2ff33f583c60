#pragma once

#include <array>

#include "ffi_abi.hpp"

namespace onedsl::xla {

// What XLA's programs call by name. Programs that were exported or cached hold these names, and
// the attributes that handlers.cpp reads: neither may change its meaning.
struct NamedHandler {
  const char* name;
  abi::Handler* handler;
};
extern const std::array<NamedHandler, 2> handlers;

}  // namespace onedsl::xla
