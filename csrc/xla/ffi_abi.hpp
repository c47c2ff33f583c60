#pragma once

#include <cstddef>
#include <cstdint>

// The binary interface of XLA's foreign functions, as far as a handler needs it. It is declared
// here so that any build of onedsl has its handlers, whether there is a JAX beside it or not, and
// one build serves many versions of JAX. By XLA's rules minor versions only add to the ends of
// these structs, which carry their sizes; what is here is as in version 0.1, that of JAX 0.6.
namespace onedsl::xla::abi {

enum DataType : int { s64 = 5, f16 = 10, f32 = 11, f64 = 12, bf16 = 16 };
enum AttributeType : int { scalar = 3, string = 4 };
enum Code : int { invalid_argument = 3, resource_exhausted = 8, internal = 13 };

struct Extension {
  static constexpr int metadata = 1;  // a type
  std::size_t size;
  int type;
  Extension* next;
};

struct Version {
  static constexpr int known_major = 0, oldest_minor = 1;
  std::size_t size;
  Extension* extensions;
  int major, minor;
};

// XLA asks each handler for its version before it is ever run.
struct Metadata {
  std::size_t size;
  Version version;
  std::uint32_t traits;
};
struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct Error;  // XLA's own; null is none
struct ErrorArguments {
  std::size_t size;
  Extension* extensions;
  const char* message;
  Code code;
};
struct Api {
  std::size_t size;
  Extension* extensions;
  Version version;
  const void* internal;
  Error* (*create_error)(ErrorArguments*);
};

struct Buffer {
  std::size_t size;
  Extension* extensions;
  DataType type;
  void* data;
  std::int64_t rank;
  std::int64_t* sizes;
};

// Arguments, and results too. Each item is a Buffer, the only type there is.
struct Buffers {
  std::size_t size;
  Extension* extensions;
  std::int64_t count;
  int* types;
  Buffer** items;
};

struct Text {
  const char* begin;
  std::size_t length;
};
struct Scalar {
  DataType type;
  void* value;
};
struct Attributes {
  std::size_t size;
  Extension* extensions;
  std::int64_t count;
  AttributeType* types;
  Text** names;
  void** items;  // a Scalar or a Text, by its type
};

struct Call {
  std::size_t size;
  Extension* extensions;
  const Api* api;
  void* context;
  int stage;
  Buffers arguments, results;
  Attributes attributes;
};

using Handler = Error*(Call*);

}  // namespace onedsl::xla::abi
