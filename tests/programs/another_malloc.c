// Loaded before everything else: a malloc that is not glibc's.
#include <stddef.h>

void* __libc_malloc(size_t bytes);
void* malloc(size_t bytes) { return __libc_malloc(bytes); }
