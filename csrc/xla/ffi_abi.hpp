#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

// The part of XLA's FFI binary interface that handlers need, as in version 0.1 (JAX 0.6). Declared
// here so that building needs no JAX and one build works with many versions of JAX: minor versions
// of the interface only append members to these structs, which contain their sizes.
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

// XLA queries the version of a handler before its first call.
struct Metadata {
  std::size_t size;
  Version version;
  std::uint32_t traits;
};
struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct Error;  // opaque; null: success
struct ErrorArguments {
  std::size_t size;
  Extension* extensions;
  const char* message;
  Code code;
};
struct DestroyArguments {
  std::size_t size;
  Extension* extensions;
  Error* error;
};

// Tasks of XLA's thread pool. The context is that of a call.
using Task = void(void* data);
struct ScheduleArguments {
  std::size_t size;
  Extension* extensions;
  void* context;
  Task* task;
  void* data;
};
struct NumThreadsArguments {
  std::size_t size;
  Extension* extensions;
  void* context;
  std::int64_t* count;
};

struct Api {
  std::size_t size;
  Extension* extensions;
  Version version;
  const void* internal;
  Error* (*create_error)(ErrorArguments*);
  const void* get_message;
  void (*destroy_error)(DestroyArguments*);
  std::array<const void*, 8> unused;
  Error* (*schedule)(ScheduleArguments*);
  Error* (*num_threads)(NumThreadsArguments*);
};

struct Buffer {
  std::size_t size;
  Extension* extensions;
  DataType type;
  void* data;
  std::int64_t rank;
  std::int64_t* sizes;
};

// The arguments or the results. All items are Buffers, XLA's only type of them.
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
struct Attrs {
  std::size_t size;
  Extension* extensions;
  std::int64_t count;
  AttributeType* types;
  Text** names;
  void** items;  // Scalars or Texts, if they have these types
};

struct CallFrame {
  std::size_t size;
  Extension* extensions;
  const Api* api;
  void* context;
  int stage;
  Buffers arguments, results;
  Attrs attributes;
};

using Handler = Error*(CallFrame*);

}  // namespace onedsl::xla::abi
