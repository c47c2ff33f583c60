// Loaded before everything else: a malloc that is not glibc's.
#include <stddef.h>

void* __libc_malloc(size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);

void* malloc(size_t bytes) { return __libc_malloc(bytes); }

int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  *memory = __libc_memalign(alignment, bytes);
  return *memory == NULL ? 12 : 0;
}
