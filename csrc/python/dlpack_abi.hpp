#pragma once

#include <array>
#include <cstdint>

// DLPack's binary interface, version 1. Declared here, so that building needs no other library.
namespace onedsl::abi {

constexpr std::int32_t cpu = 1;  // a type of devices
// The types of devices whose memory the CPU can access: its own, pinned by CUDA, pinned by ROCm.
constexpr std::array<std::int32_t, 3> host_devices = {cpu, 3, 11};
constexpr std::uint8_t floating = 2, bfloat = 4;  // codes of types

struct Version {
  std::uint32_t major, minor;
};
struct Device {
  std::int32_t type, id;
};
struct Type {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};
struct Tensor {
  void* data;
  Device device;
  std::int32_t rank;
  Type type;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; before version 1.2, null for C order
  std::uint64_t byte_offset;
};
struct Unversioned {
  static constexpr const char* name = "dltensor";
  Tensor tensor;
  void* context;
  void (*deleter)(Unversioned*);
};
struct Versioned {
  static constexpr const char* name = "dltensor_versioned";
  Version version;
  void* context;
  void (*deleter)(Versioned*);
  std::uint64_t flags;
  Tensor tensor;
};
constexpr std::uint64_t read_only = 1, is_copied = 2;  // flags

// C functions that a library publishes as the attribute __dlpack_c_exchange_api__ of its array
// type. With PyTorch they take a fiftieth of the time of __dlpack__, because they make no capsule.
struct ExchangeApi {
  static constexpr const char* name = "dlpack_exchange_api";
  Version version;
  ExchangeApi* previous;
  void* allocate;
  void* from_object;
  void* to_object;
  int (*borrow_object)(void*, Tensor*);  // may be null
  void* current_stream;
};

}  // namespace onedsl::abi
