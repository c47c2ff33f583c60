#pragma once

namespace onedsl {

// Memory for operator new within a scope, on this thread: if there is no other, it is freed, once.
// For functions of other libraries that end the process if a small allocation fails.
class MemoryReserve {
 public:
  MemoryReserve();  // throws std::bad_alloc
  ~MemoryReserve();
  MemoryReserve(const MemoryReserve&) = delete;
  MemoryReserve& operator=(const MemoryReserve&) = delete;
};

}  // namespace onedsl
