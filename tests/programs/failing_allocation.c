/* Loaded before everything else: lets one allocation of the process fail. */
#define _GNU_SOURCE
#include <errno.h>
#include <execinfo.h>
#include <link.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

struct library {
  const char* name; /* part of its path */
  char *begin, *end;
};
static struct library within, outside;
static atomic_long left;  /* allocations until the one that fails */
static atomic_long count; /* since fail_allocation() */
static __thread int is_nested __attribute__((tls_model("initial-exec")));

static int find(struct dl_phdr_info* info, size_t size, void* to) {
  struct library* const library = to;
  (void)size;
  if (library->name == NULL || strstr(info->dlpi_name, library->name) == NULL) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* const part = &info->dlpi_phdr[i];
    if (part->p_type != PT_LOAD || (part->p_flags & PF_X) == 0) continue;
    library->begin = (char*)info->dlpi_addr + part->p_vaddr;
    library->end = library->begin + part->p_memsz;
  }
  return 1;
}

/* Lets the n-th allocation from now on fail, none if n is 0. Counts those that one library makes,
   itself or by functions that it calls, and another one does not; NULL is no library. Returns the
   number of allocations since the call before. */
long fail_allocation(long n, const char* inner, const char* outer) {
  void* frame;
  backtrace(&frame, 1); /* loads what it needs */
  within = (struct library){inner, NULL, NULL};
  outside = (struct library){outer, NULL, NULL};
  dl_iterate_phdr(&find, &within);
  dl_iterate_phdr(&find, &outside);
  atomic_store(&left, n);
  return atomic_exchange(&count, 0);
}

static int is_on_stack(const struct library* library, void** frames, int depth) {
  for (int i = 0; i < depth; ++i) {
    if (library->begin <= (char*)frames[i] && (char*)frames[i] < library->end) return 1;
  }
  return 0;
}

static int fails(void) {
  void* frames[100];
  int result = 0;
  if (atomic_load(&left) <= 0 || is_nested) return 0;
  is_nested = 1;
  const int needs_stack = within.name != NULL || outside.name != NULL || getenv("STACKS") != NULL;
  const int depth = needs_stack ? backtrace(frames, 100) : 0;
  if ((within.name == NULL || is_on_stack(&within, frames, depth)) &&
      !is_on_stack(&outside, frames, depth)) {
    atomic_fetch_add(&count, 1);
    result = atomic_fetch_sub(&left, 1) == 1;
  }
  if (result && getenv("STACKS") != NULL) backtrace_symbols_fd(frames, depth, 2);
  is_nested = 0;
  if (result) errno = ENOMEM;
  return result;
}

void* malloc(size_t bytes) { return fails() ? NULL : __libc_malloc(bytes); }
void* calloc(size_t items, size_t bytes) { return fails() ? NULL : __libc_calloc(items, bytes); }
void* realloc(void* memory, size_t bytes) {
  return fails() ? NULL : __libc_realloc(memory, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  return fails() ? NULL : __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  void* const made = fails() ? NULL : __libc_memalign(alignment, bytes);
  if (made == NULL) return ENOMEM;
  *memory = made;
  return 0;
}
void* mmap(void* address, size_t bytes, int protection, int flags, int file, off_t offset) {
  if (fails()) return MAP_FAILED;
  return (void*)syscall(SYS_mmap, address, bytes, protection, flags, file, offset);
}
