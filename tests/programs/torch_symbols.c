// Loaded before PyTorch: hides or changes functions of PyTorch, by their symbols.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef void* Kernel(void**, void*, void*, void*, void*, void*, int, double, double);
static Kernel* kernel;

// Another epsilon.
static void* inexact(void** results, void* src, void* weight, void* bias, void* mean,
                     void* variance, int training, double momentum, double epsilon) {
  return kernel(results, src, weight, bias, mean, variance, training, momentum, epsilon * 2);
}

// A fourth result.
static void* longer(void** results, void* src, void* weight, void* bias, void* mean,
                    void* variance, int training, double momentum, double epsilon) {
  kernel(results, src, weight, bias, mean, variance, training, momentum, epsilon);
  results[3] = results[2];
  return results;
}

// Fails before or after PyTorch has taken the memory.
typedef int FromBlob(void*, int64_t, const int64_t*, const int64_t*, int64_t, int32_t, int32_t,
                     int32_t, void**, int32_t, const uint8_t*, int64_t, void (*)(void*, void*),
                     void*);
static FromBlob* from_blob;
static int fail(void* data, int64_t rank, const int64_t* sizes, const int64_t* strides,
                int64_t offset, int32_t type, int32_t device, int32_t index, void** made,
                int32_t layout, const uint8_t* opaque, int64_t opaque_size,
                void (*deleter)(void*, void*), void* context) {
  const char* const when = getenv("FAILS");
  if (when == NULL) {
    return from_blob(data, rank, sizes, strides, offset, type, device, index, made, layout, opaque,
                     opaque_size, deleter, context);
  }
  if (strcmp(when, "after") == 0) deleter(data, context);
  return 1;
}

void* dlsym(void* library, const char* name) {
  static void* (*original)(void*, const char*);
  if (original == NULL) *(void**)&original = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
  void* const found = original(library, name);
  const char* const hidden = getenv("HIDDEN");
  if (hidden != NULL && strstr(name, hidden) != NULL) return NULL;
  if (strcmp(name, "torch_from_blob") == 0) {
    *(void**)&from_blob = found;
    return (void*)&fail;
  }
  const char* const changed = getenv("CHANGED");
  if (changed != NULL && strstr(name, "17native_batch_normE") != NULL) {
    *(void**)&kernel = found;
    return strcmp(changed, "inexact") == 0 ? (void*)&inexact : (void*)&longer;
  }
  return found;
}
