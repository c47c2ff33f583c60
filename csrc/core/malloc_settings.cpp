#include "malloc_settings.hpp"

#include <dlfcn.h>
#include <malloc.h>

#include <array>
#include <utility>

namespace onedsl {
namespace {

// Return the address at which the library is loaded in which the process finds a function.
const void* library_of(const char* const function) noexcept {
  const void* const found = dlsym(RTLD_DEFAULT, function);
  Dl_info info = {};
  return found != nullptr && dladdr(found, &info) != 0 ? info.dli_fbase : nullptr;
}

}  // namespace

bool malloc_is_glibcs() noexcept {
  const void* const glibc = library_of("gnu_get_libc_version");
  return glibc != nullptr && library_of("malloc") == glibc && library_of("mallopt") == glibc;
}

bool keep_memory(const bool keep) noexcept {
  // With one arena for all threads, malloc has no heaps of 64 MB, which it returns to the system
  // when they are empty, and from which it cannot take larger tensors. 0 means no limit.
  const std::array settings = {std::pair(M_MMAP_MAX, keep ? 0 : 65536),
                               std::pair(M_TRIM_THRESHOLD, keep ? -1 : 128 * 1024),
                               std::pair(M_ARENA_MAX, keep ? 1 : 0)};
  for (const auto& [parameter, value] : settings) {
    if (mallopt(parameter, value) == 0) return false;
  }
  if (!keep) malloc_trim(0);
  return true;
}

}  // namespace onedsl
