#pragma once

#include <cstddef>

namespace onedsl {

constexpr std::size_t large_memory = std::size_t{4} << 20;  // bytes

// Memory for a large result, as NumPy has it: by malloc, with large pages asked for. PyTorch's own
// costs more than a kernel needs to fill it. Each page of 4 KB has a fault at its first write, and
// memory is new ever so often, as posix_memalign wants more of malloc than it keeps: what was freed
// is too short for the next tensor of the same size.
struct LargeMemory {
  void* begin = nullptr;  // a cache line's
  void* to_free = nullptr;
};

// Throws std::bad_alloc.
LargeMemory allocate_large(std::size_t bytes);

}  // namespace onedsl
