#pragma once

#include <array>

#include "../core/operation.hpp"
#include "ffi_abi.hpp"

namespace onedsl::xla {

// Functions that XLA programs call by name. Exported and cached programs contain these names and
// the attributes that handlers.cpp reads, so the meaning of neither may change.
struct NamedHandler {
  const char* name;
  Operation operation;
  abi::Handler* handler;
};
extern const std::array<NamedHandler, 4> handlers;

}  // namespace onedsl::xla
