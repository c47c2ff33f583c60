#include "large_memory.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <new>

namespace onedsl {
namespace {

constexpr std::size_t line = 64;
constexpr std::size_t page = 4096;

std::size_t up_to(const std::size_t multiple, const void* const from) noexcept {
  return (multiple - reinterpret_cast<std::uintptr_t>(from) % multiple) % multiple;
}

}  // namespace

LargeMemory allocate_large(const std::size_t bytes) {
  char* const all = static_cast<char*>(std::malloc(bytes + line));
  if (all == nullptr) throw std::bad_alloc();
  char* const begin = all + up_to(line, all);
  const std::size_t before = up_to(page, begin);
  // Advice: there is nothing to be done where it is not taken.
  if (before < bytes) static_cast<void>(madvise(begin + before, bytes - before, MADV_HUGEPAGE));
  return {begin, all};
}

}  // namespace onedsl
