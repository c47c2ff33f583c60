#include "pytorch.hpp"

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace onedsl::torch {

const StableInterface* api = nullptr;

Symbol::Symbol(const char* const name) {
  // The handle is never closed: Python keeps the library loaded.
  void* const library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) throw std::runtime_error("PyTorch must be imported first");
  address_ = dlsym(library, name);
}

Symbol find(const char* const name) {
  const Symbol symbol(name);
  if (static_cast<void*>(symbol) == nullptr) {
    throw std::runtime_error("this version of PyTorch is not supported: it has no " +
                             std::string(name));
  }
  return symbol;
}

std::int32_t constant(const char* const name) {
  std::int32_t (*const function)() = find(name);
  return function();
}

void load() {
  std::uint64_t (*const version)() = find("aoti_torch_abi_version");
  if (version() < oldest_version) throw std::runtime_error("PyTorch must be 2.11 or newer");
  static const StableInterface stable_interface;
  api = &stable_interface;
}

const CpuKernels& cpu_kernels() {
  static const CpuKernels kernels;
  return kernels;
}

}  // namespace onedsl::torch
