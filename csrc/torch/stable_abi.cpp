#include "stable_abi.hpp"

#include <dlfcn.h>

namespace onedsl::torch::abi {
namespace {

template <class Function>
bool find(void* const library, const char* const name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

bool find_all(void* const library, Functions& f) {
  return find(library, "aoti_torch_library_init_impl", f.make_library) &&
         find(library, "torch_library_impl", f.add_kernel) &&
         find(library, "aoti_torch_delete_library_object", f.delete_library) &&
         find(library, "torch_call_dispatcher", f.call) &&
         find(library, "aoti_torch_is_defined", f.is_defined) &&
         find(library, "aoti_torch_get_device_type", f.device) &&
         find(library, "aoti_torch_get_layout", f.layout) &&
         find(library, "aoti_torch_get_dtype", f.type) &&
         find(library, "aoti_torch_get_dim", f.rank) &&
         find(library, "aoti_torch_get_sizes", f.sizes) &&
         find(library, "aoti_torch_get_strides", f.strides) &&
         find(library, "torch_get_const_data_ptr", f.data) &&
         find(library, "torch_get_mutable_data_ptr", f.mutable_data) &&
         find(library, "aoti_torch_empty_strided", f.empty) &&
         find(library, "torch_from_blob", f.from_blob) &&
         find(library, "aoti_torch_new_uninitialized_tensor", f.undefined) &&
         find(library, "aoti_torch_new_tensor_handle", f.another) &&
         find(library, "aoti_torch_delete_tensor_object", f.delete_tensor) &&
         find(library, "torch_list_size", f.list_size) &&
         find(library, "torch_list_get_item", f.list_item) &&
         find(library, "torch_delete_list", f.delete_list) &&
         find(library, "aoti_torch_device_type_cpu", f.cpu) &&
         find(library, "aoti_torch_layout_strided", f.strided) &&
         find(library, "aoti_torch_dtype_float32", f.f32) &&
         find(library, "aoti_torch_dtype_bfloat16", f.bf16) &&
         find(library, "aoti_torch_dtype_float16", f.f16);
}

}  // namespace

const Functions* functions() {
  static Functions found;
  static const bool has_all = [] {
    // The one that is loaded, which Python keeps so: this handle is never closed.
    void* const library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    return library != nullptr && find_all(library, found);
  }();
  return has_all ? &found : nullptr;
}

}  // namespace onedsl::torch::abi
