#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "check.hpp"
#include "core/large_memory.hpp"
#include "tests.hpp"

namespace onedsl::test {

// The sanitizers see each byte that is written, and whether all is given back.
void test_large_memory() {
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{64}, std::size_t{4097}, large_memory, large_memory + 12345}) {
    const LargeMemory memory = allocate_large(bytes);
    check(reinterpret_cast<std::uintptr_t>(memory.begin) % 64 == 0, bytes, " bytes: not aligned");
    std::memset(memory.begin, 1, bytes);
    std::free(memory.to_free);
  }
}

}  // namespace onedsl::test
