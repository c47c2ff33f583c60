// Prints whether malloc is glibc's, as csrc/core/malloc_settings.cpp finds it.
#include <cstdio>
#include <cstdlib>

#include "core/malloc_settings.hpp"

int main() {
  // Code of an executable at a fixed address (as Debian's Python is) that takes the address of
  // malloc gives it an entry of its own.
  void* (*volatile const address)(std::size_t) = &std::malloc;
  std::free(address(1));
  std::puts(onedsl::malloc_is_glibcs() ? "True" : "False");
}
