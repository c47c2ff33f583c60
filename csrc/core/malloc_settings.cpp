#include "malloc_settings.hpp"

#include <dlfcn.h>
#include <link.h>
#include <malloc.h>

#include <algorithm>
#include <array>

namespace onedsl {
namespace {

// Where the process finds the definition of a function.
struct Definition {
  const void* library = nullptr;  // where it is loaded
  bool is_entry = false;          // of an executable, which jumps to the function
};

Definition definition_of(const char* const name) noexcept {
  const void* const address = dlsym(RTLD_DEFAULT, name);
  Dl_info info = {};
  void* symbol = nullptr;
  if (address == nullptr || dladdr1(address, &info, &symbol, RTLD_DL_SYMENT) == 0) return {};
  const bool defined =
      symbol == nullptr || static_cast<const ElfW(Sym)*>(symbol)->st_shndx != SHN_UNDEF;
  return {info.dli_fbase, !defined};
}

}  // namespace

bool malloc_is_glibcs() noexcept {
  const void* const glibc = definition_of("gnu_get_libc_version").library;
  // Executables at a fixed address have entries for the functions whose address they take, in
  // Debian's Python malloc. Who replaces malloc replaces posix_memalign, too.
  const std::array functions = {"malloc", "posix_memalign", "mallopt"};
  return glibc != nullptr && std::all_of(functions.begin(), functions.end(), [&](const char* name) {
           const Definition found = definition_of(name);
           return found.library == glibc || found.is_entry;
         });
}

bool keep_memory(const bool keep, const bool one_arena) noexcept {
  // Larger blocks stay blocks of their own: malloc cannot serve an aligned block again from the
  // memory of one that was freed while a small block lives next to it, and would grow.
  constexpr int most = 32 << 20;  // malloc accepts no more
  if (mallopt(M_MMAP_THRESHOLD, keep ? most : 128 << 10) == 0) return false;
  mallopt(M_TRIM_THRESHOLD, keep ? -1 : 128 << 10);  // these accept every value
  // With one arena for all threads, malloc has no heaps of 64 MB, which it returns to the system
  // when they are empty. 0 means no limit.
  if (one_arena) mallopt(M_ARENA_MAX, keep ? 1 : 0);
  if (!keep) malloc_trim(0);
  return true;
}

}  // namespace onedsl
