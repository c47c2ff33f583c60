#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>

// The parts of PyTorch that the kernels use: its stable C interface, and its own CPU kernels.
//
// They are declared here and looked up in the PyTorch that the process has loaded, so that one
// build of onedsl serves many versions of PyTorch.
namespace onedsl::torch {

// The oldest supported PyTorch, 2.11, as aoti_torch_abi_version() writes it.
constexpr std::uint64_t oldest_version = (2ULL << 56) | (11ULL << 48);

// at::Tensor: one pointer to a reference-counted object. The C interface calls a pointer to it a
// handle. This class does not manage the reference. Its destructor is user-provided because
// at::Tensor's is, and the calling convention depends on it.
struct Tensor {
  explicit Tensor(void* const pointer) noexcept : impl(pointer) {}
  Tensor(const Tensor& other) noexcept : impl(other.impl) {}
  ~Tensor() {}  // NOLINT(modernize-use-equals-default)

  void* impl;
};
using OptionalTensor = std::optional<Tensor>;

struct List;     // of Values
struct Text;     // std::string
struct Library;  // registered kernels

// An argument or a result of an op, 8 bytes: a double, a bool in the lowest byte, or an owned
// Tensor*, List* or Text*. An optional one is 0, or an owned Value* that holds it.
using Value = std::uint64_t;

// Reads and owns the arguments in `values`, and writes the results there.
using Kernel = void(Value* values, std::uint64_t num_arguments, std::uint64_t num_results);

using Error = std::int32_t;  // 0 is success

// The function of a name in the loaded PyTorch, null if it has none. Converts to a pointer of any
// type.
class Symbol {
 public:
  explicit Symbol(const char* name);
  template <class Function>
  operator Function*() const noexcept {  // NOLINT(google-explicit-constructor)
    return reinterpret_cast<Function*>(address_);
  }

 private:
  void* address_;
};

// Throws std::runtime_error if the process has not loaded PyTorch, or if it lacks the function.
Symbol find(const char* name);

// Returns the constant that a function of this name returns.
std::int32_t constant(const char* name);

// The stable C interface. Tensors that a function returns through `made` are owned by the caller.
struct StableInterface {
  Error (*make_library)(const char* ops, const char* key, const char* file, std::uint32_t line,
                        Library** made) = find("aoti_torch_library_init_impl");
  Error (*add_kernel)(Library*, const char* op, Kernel*,
                      std::uint64_t version) = find("torch_library_impl");
  Error (*call)(const char* op, const char* overload, Value* values,
                std::uint64_t version) = find("torch_call_dispatcher");

  Error (*num_threads)(std::uint32_t*) = find("torch_get_num_threads");

  Error (*is_defined)(const Tensor*, bool*) = find("aoti_torch_is_defined");
  Error (*device)(const Tensor*, std::int32_t*) = find("aoti_torch_get_device_type");
  Error (*layout)(const Tensor*, std::int32_t*) = find("aoti_torch_get_layout");
  Error (*type)(const Tensor*, std::int32_t*) = find("aoti_torch_get_dtype");
  Error (*rank)(const Tensor*, std::int64_t*) = find("aoti_torch_get_dim");
  Error (*sizes)(const Tensor*, std::int64_t**) = find("aoti_torch_get_sizes");
  Error (*strides)(const Tensor*, std::int64_t**) = find("aoti_torch_get_strides");
  Error (*storage_bytes)(const Tensor*, std::int64_t*) = find("aoti_torch_get_storage_size");
  Error (*storage_offset)(const Tensor*, std::int64_t*) = find("aoti_torch_get_storage_offset");
  Error (*data)(const Tensor*, const void**) = find("torch_get_const_data_ptr");
  Error (*mutable_data)(const Tensor*, void**) = find("torch_get_mutable_data_ptr");
  Error (*empty)(std::int64_t rank, const std::int64_t* sizes, const std::int64_t* strides,
                 std::int32_t type, std::int32_t device, std::int32_t device_index,
                 Tensor** made) = find("aoti_torch_empty_strided");
  Error (*undefined)(Tensor** made) = find("aoti_torch_new_uninitialized_tensor");
  Error (*clone)(const Tensor* of, Tensor** made) = find("aoti_torch_clone");
  Error (*copy)(Tensor* to, const Tensor* from,
                std::int32_t non_blocking) = find("aoti_torch_copy_");
  Error (*delete_tensor)(Tensor*) = find("aoti_torch_delete_tensor_object");

  Error (*list_item)(List*, std::size_t index, Value*) = find("torch_list_get_item");
  Error (*delete_list)(List*) = find("torch_delete_list");

  Error (*characters)(Text*, const char**) = find("torch_string_c_str");
  Error (*delete_text)(Text*) = find("torch_delete_string");

  std::int32_t cpu = constant("aoti_torch_device_type_cpu");
  std::int32_t strided = constant("aoti_torch_layout_strided");
  std::int32_t f64 = constant("aoti_torch_dtype_float64");
  std::int32_t f32 = constant("aoti_torch_dtype_float32");
  std::int32_t bf16 = constant("aoti_torch_dtype_bfloat16");
  std::int32_t f16 = constant("aoti_torch_dtype_float16");

  // Text of the last error; null before PyTorch 2.12.
  const char* (*exception_text)() = Symbol("torch_exception_get_what_without_backtrace");
};

// PyTorch's own CPU kernels: the functions of these names in ATen/CPUFunctions.h, which do not go
// through the dispatcher. The stable C interface has no way to call a kernel that another one
// overrides. These are C++ functions, so exceptions of PyTorch pass through unchanged. The
// looked-up names contain the parameter types (`S<n>_` refers to an earlier one); the result types
// and the layout of Tensor are assumed, so each function is compared with its op before it is used.
// Those that PyTorch lacks are null. The returned tensors are owned by the caller.
struct CpuKernels {
  using Three = std::tuple<Tensor, Tensor, Tensor>;

  Three (*forward)(const Tensor& src, const OptionalTensor& weight, const OptionalTensor& bias,
                   const OptionalTensor& running_mean, const OptionalTensor& running_var,
                   bool training, double momentum, double eps) =
      Symbol("_ZN2at3cpu17native_batch_normERKNS_6TensorERKSt8optionalIS1_ES7_S7_S7_bdd");
  Three (*forward_legit)(const Tensor& src, const OptionalTensor& weight,
                         const OptionalTensor& bias, const Tensor& running_mean,
                         const Tensor& running_var, bool training, double momentum, double eps) =
      Symbol("_ZN2at3cpu24_native_batch_norm_legitERKNS_6TensorERKSt8optionalIS1_ES7_RS1_S8_bdd");
  Three (*forward_no_stats)(const Tensor& src, const OptionalTensor& weight,
                            const OptionalTensor& bias, bool training, double momentum,
                            double eps) =
      Symbol("_ZN2at3cpu24_native_batch_norm_legitERKNS_6TensorERKSt8optionalIS1_ES7_bdd");
  Three (*backward)(const Tensor& diff_dst, const Tensor& src, const OptionalTensor& weight,
                    const OptionalTensor& running_mean, const OptionalTensor& running_var,
                    const OptionalTensor& save_mean, const OptionalTensor& save_invstd, bool train,
                    double eps, std::array<bool, 3> output_mask) =
      Symbol(
          "_ZN2at3cpu26native_batch_norm_backwardERKNS_6TensorES3_RKSt8optionalIS1_ES7_S7_S7_S7_bd"
          "St5arrayIbLm3EE");
};

// Null before load().
extern const StableInterface* api;

// Looks up the stable interface. Throws std::runtime_error as find() does, or if PyTorch is older
// than oldest_version.
void load();

const CpuKernels& cpu_kernels();

}  // namespace onedsl::torch
