#include "memory_reserve.hpp"

#include <cstdlib>
#include <new>
#include <utility>

namespace onedsl {
namespace {

// Larger than what malloc implementations keep by size, so that freed memory serves other sizes.
constexpr std::size_t bytes = 4096;

thread_local void* reserve = nullptr;

const std::new_handler next = std::get_new_handler();

// operator new calls it when malloc fails, and tries again when it returns.
[[maybe_unused]] const std::new_handler installed = std::set_new_handler([] {
  if (reserve != nullptr) return std::free(std::exchange(reserve, nullptr));
  if (next == nullptr) throw std::bad_alloc();
  next();
});

}  // namespace

MemoryReserve::MemoryReserve() {
  reserve = std::malloc(bytes);
  if (reserve == nullptr) throw std::bad_alloc();
}

MemoryReserve::~MemoryReserve() { std::free(std::exchange(reserve, nullptr)); }

}  // namespace onedsl
