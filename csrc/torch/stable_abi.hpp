#pragma once

#include <cstddef>
#include <cstdint>

// PyTorch's stable C interface, as far as the kernels need it. It is declared here, and its
// functions are looked up in the PyTorch that the process has loaded, so that any build of onedsl
// has the kernels, and one build serves many versions of PyTorch. What is here is as in
// version 2.10.
namespace onedsl::torch::abi {

constexpr std::uint64_t version = (2ULL << 56) | (11ULL << 48);

using Error = std::int32_t;  // 0 is none

struct Tensor;   // an owned reference, each of them
struct List;     // of Values
struct Library;  // kernels, for as long as it lives

// An argument or a result of an op: a double, or a bool in its lowest byte, or a Tensor* or List*,
// which then belong to whom they are passed to. Optional ones are 0, or a Value* from `new`.
using Value = std::uint64_t;

// Takes its arguments from the first values, and leaves its results there.
using Kernel = void(Value* values, std::uint64_t num_arguments, std::uint64_t num_results);

struct Functions {
  Error (*make_library)(const char* ops, const char* key, const char* file, std::uint32_t line,
                        Library** made);
  Error (*add_kernel)(Library*, const char* op, Kernel*, std::uint64_t version);
  Error (*delete_library)(Library*);
  Error (*call)(const char* op, const char* overload, Value*, std::uint64_t version);

  Error (*is_defined)(Tensor*, bool*);
  Error (*device)(Tensor*, std::int32_t*);
  Error (*layout)(Tensor*, std::int32_t*);
  Error (*type)(Tensor*, std::int32_t*);
  Error (*rank)(Tensor*, std::int64_t*);
  Error (*sizes)(Tensor*, std::int64_t**);
  Error (*strides)(Tensor*, std::int64_t**);
  Error (*data)(Tensor*, const void**);
  Error (*mutable_data)(Tensor*, void**);
  Error (*empty)(std::int64_t rank, const std::int64_t* sizes, const std::int64_t* strides,
                 std::int32_t type, std::int32_t device, std::int32_t device_index, Tensor** made);
  // The deleter gets the data and its argument.
  Error (*from_blob)(void* data, std::int64_t rank, const std::int64_t* sizes,
                     const std::int64_t* strides, std::int64_t offset, std::int32_t type,
                     std::int32_t device, std::int32_t device_index, Tensor** made,
                     std::int32_t layout, const std::uint8_t* opaque, std::int64_t opaque_size,
                     void (*deleter)(void*, void*), void* argument);
  Error (*undefined)(Tensor** made);
  Error (*another)(Tensor*, Tensor** made);
  Error (*delete_tensor)(Tensor*);

  Error (*list_size)(List*, std::size_t*);
  Error (*list_item)(List*, std::size_t index, Value*);
  Error (*delete_list)(List*);

  std::int32_t (*cpu)();
  std::int32_t (*strided)();
  std::int32_t (*f32)();
  std::int32_t (*bf16)();
  std::int32_t (*f16)();
};

// Null where no PyTorch is loaded, or one that has not all of them.
const Functions* functions();

}  // namespace onedsl::torch::abi
