/* Overrides oneDNN by preloading: a build whose CPU runtime is SYCL. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
struct version { int major, minor, patch; const char *hash; unsigned cpu, gpu; };
const struct version *dnnl_version(void) {
    static struct version changed;
    void *library = dlopen("libdnnl.so.3", RTLD_LAZY | RTLD_NOLOAD);
    const struct version *(*own)(void) = dlsym(library, "dnnl_version");
    changed = *own();
    changed.cpu = 512; /* DNNL_RUNTIME_SYCL */
    return &changed;
}
