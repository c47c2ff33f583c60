#pragma once

#include <cstdint>
#include <stdexcept>
#include <string_view>

#include "../core/types.hpp"
#include "ffi_abi.hpp"

// What a handler reads of XLA's call. Programs may come from anywhere, so everything is looked at
// before it is used.
namespace onedsl::xla {

// The call is not one that onedsl.jax makes.
class BadCall : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// Whether XLA's structs have what a handler reads of them.
bool is_known(const abi::Call& call) noexcept;

double number(const abi::Attributes& attributes, std::string_view name);
std::int64_t integer(const abi::Attributes& attributes, std::string_view name);
// One of two words; whether it is the first.
bool is_first(const abi::Attributes& attributes, std::string_view name, std::string_view first,
              std::string_view second);

const abi::Buffer& buffer(const abi::Buffers& buffers, std::int64_t index);
DataType type_of(const abi::Buffer& buffer);

}  // namespace onedsl::xla
