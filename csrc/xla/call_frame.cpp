#include "call_frame.hpp"

#include <string>

namespace onedsl::xla {
namespace {

std::string_view view(const abi::Text& text) { return {text.begin, text.length}; }

[[noreturn]] void reject(const std::string_view attribute, const char* const expected) {
  throw InvalidCall("the attribute " + std::string(attribute) + " must be " + expected);
}

const void* find(const abi::Attributes& attributes, const std::string_view name,
                 const abi::AttributeType type, const char* const expected) {
  for (std::int64_t i = 0; i < attributes.count; ++i) {
    if (view(*attributes.names[i]) != name) continue;
    if (attributes.types[i] != type) break;
    return attributes.items[i];
  }
  reject(name, expected);
}

template <class T>
T scalar(const abi::Attributes& attributes, const std::string_view name, const abi::DataType type,
         const char* const expected) {
  const auto* const found =
      static_cast<const abi::Scalar*>(find(attributes, name, abi::scalar, expected));
  if (found->type != type) reject(name, expected);
  return *static_cast<const T*>(found->value);
}

}  // namespace

bool is_known(const abi::Call& call) noexcept {
  return call.size >= sizeof(abi::Call) && call.arguments.size == sizeof(abi::Buffers) &&
         call.results.size == sizeof(abi::Buffers) &&
         call.attributes.size == sizeof(abi::Attributes);
}

double number(const abi::Attributes& attributes, const std::string_view name) {
  return scalar<double>(attributes, name, abi::f64, "an f64");
}

std::int64_t integer(const abi::Attributes& attributes, const std::string_view name) {
  return scalar<std::int64_t>(attributes, name, abi::s64, "an i64");
}

bool is_first(const abi::Attributes& attributes, const std::string_view name,
              const std::string_view first, const std::string_view second) {
  const std::string_view word =
      view(*static_cast<const abi::Text*>(find(attributes, name, abi::string, "a string")));
  if (word != first && word != second) {
    reject(name, (std::string(first) + " or " + std::string(second)).c_str());
  }
  return word == first;
}

const abi::Buffer& buffer(const abi::Buffers& buffers, const std::int64_t index) {
  const abi::Buffer& found = *buffers.items[index];
  if (found.size < sizeof(abi::Buffer)) throw InvalidCall("XLA's buffers have an unknown version");
  return found;
}

DataType type_of(const abi::Buffer& buffer) {
  switch (buffer.type) {
    case abi::f32:
      return DataType::f32;
    case abi::bf16:
      return DataType::bf16;
    case abi::f16:
      return DataType::f16;
    default:
      throw InvalidCall("arrays must be f32, bf16 or f16");
  }
}

}  // namespace onedsl::xla
