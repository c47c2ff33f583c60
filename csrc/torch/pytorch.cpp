#include "pytorch.hpp"

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace onedsl::torch {

StableInterface api;
CpuKernels cpu_kernels;

namespace {

class LoadedPyTorch {
 public:
  // The handle is never closed: Python keeps the library loaded.
  LoadedPyTorch() : library_(dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD)) {
    if (library_ == nullptr) throw std::runtime_error("PyTorch must be imported first");
  }

  template <class Function>
  void find_optional(const char* const name, Function*& function) const {
    function = reinterpret_cast<Function*>(dlsym(library_, name));
  }

  template <class Function>
  void find(const char* const name, Function*& function) const {
    find_optional(name, function);
    if (function == nullptr) {
      throw std::runtime_error("this version of PyTorch is not supported: it has no " +
                               std::string(name));
    }
  }

 private:
  void* library_;
};

}  // namespace

void load() {
  const LoadedPyTorch loaded;
  std::uint64_t (*version)() = nullptr;
  loaded.find("aoti_torch_abi_version", version);
  if (version() < oldest_version) throw std::runtime_error("PyTorch must be 2.11 or newer");

  loaded.find("aoti_torch_library_init_impl", api.make_library);
  loaded.find("torch_library_impl", api.add_kernel);
  loaded.find("torch_call_dispatcher", api.call);
  loaded.find("aoti_torch_is_defined", api.is_defined);
  loaded.find("aoti_torch_get_device_type", api.device);
  loaded.find("aoti_torch_get_layout", api.layout);
  loaded.find("aoti_torch_get_dtype", api.type);
  loaded.find("aoti_torch_get_dim", api.rank);
  loaded.find("aoti_torch_get_sizes", api.sizes);
  loaded.find("aoti_torch_get_strides", api.strides);
  loaded.find("torch_get_const_data_ptr", api.data);
  loaded.find("torch_get_mutable_data_ptr", api.mutable_data);
  loaded.find("aoti_torch_empty_strided", api.empty);
  loaded.find("torch_from_blob", api.from_blob);
  loaded.find("aoti_torch_new_uninitialized_tensor", api.undefined);
  loaded.find("aoti_torch_clone", api.clone);
  loaded.find("aoti_torch_copy_", api.copy);
  loaded.find("aoti_torch_delete_tensor_object", api.delete_tensor);
  loaded.find("torch_list_get_item", api.list_item);
  loaded.find("torch_delete_list", api.delete_list);
  loaded.find("aoti_torch_device_type_cpu", api.cpu);
  loaded.find("aoti_torch_layout_strided", api.strided);
  loaded.find("aoti_torch_dtype_float32", api.f32);
  loaded.find("aoti_torch_dtype_bfloat16", api.bf16);
  loaded.find("aoti_torch_dtype_float16", api.f16);
  loaded.find_optional("torch_exception_get_what_without_backtrace", api.exception_text);

  // T: const at::Tensor&, M: at::Tensor&, O: const std::optional<at::Tensor>&. `S<n>_` are the
  // Itanium C++ ABI's references to a type that the name already contains.
  loaded.find("_ZN2at3cpu17native_batch_normERKNS_6TensorERKSt8optionalIS1_ES7_S7_S7_bdd",
              cpu_kernels.forward);  // T O O O O bool double double
  loaded.find("_ZN2at3cpu24_native_batch_norm_legitERKNS_6TensorERKSt8optionalIS1_ES7_RS1_S8_bdd",
              cpu_kernels.forward_legit);  // T O O M M bool double double
  loaded.find("_ZN2at3cpu24_native_batch_norm_legitERKNS_6TensorERKSt8optionalIS1_ES7_bdd",
              cpu_kernels.forward_no_stats);  // T O O bool double double
  loaded.find(
      "_ZN2at3cpu26native_batch_norm_backwardERKNS_6TensorES3_RKSt8optionalIS1_ES7_S7_S7_S7_bdSt5"
      "arrayIbLm3EE",
      cpu_kernels.backward);  // T T O O O O O bool double array<bool, 3>
}

}  // namespace onedsl::torch
