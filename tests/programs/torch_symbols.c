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

void* dlsym(void* library, const char* name) {
  static void* (*original)(void*, const char*);
  if (original == NULL) *(void**)&original = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
  void* const found = original(library, name);
  const char* const hidden = getenv("HIDDEN");
  if (hidden != NULL && strstr(name, hidden) != NULL) return NULL;
  const char* const changed = getenv("CHANGED");
  if (changed != NULL && strstr(name, "17native_batch_normE") != NULL) {
    *(void**)&kernel = found;
    return strcmp(changed, "inexact") == 0 ? (void*)&inexact : (void*)&longer;
  }
  return found;
}
