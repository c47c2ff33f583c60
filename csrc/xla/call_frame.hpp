#pragma once

#include <cstdint>
#include <stdexcept>
#include <string_view>

#include "../core/types.hpp"
#include "ffi_abi.hpp"

// Reads XLA's calls. Programs may come from untrusted files, so everything is checked before use.
namespace onedsl::xla {

// The call is not one that onedsl.jax makes.
class InvalidCall : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// Returns whether XLA's structs have all members that a handler reads.
bool is_known(const abi::Call& call) noexcept;

double number(const abi::Attributes& attributes, std::string_view name);
std::int64_t integer(const abi::Attributes& attributes, std::string_view name);
// Reads a string that must be `first` or `second`; returns whether it is `first`.
bool is_first(const abi::Attributes& attributes, std::string_view name, std::string_view first,
              std::string_view second);

const abi::Buffer& buffer(const abi::Buffers& buffers, std::int64_t index);
DataType type_of(const abi::Buffer& buffer);

}  // namespace onedsl::xla
