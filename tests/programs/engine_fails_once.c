/* Overrides oneDNN by preloading: the first CPU engine cannot be created for lack of memory. */
#include <dlfcn.h>
#include <stddef.h>
typedef void *dnnl_engine_t;
int dnnl_engine_create(dnnl_engine_t *engine, int kind, size_t index) {
    static int calls = 0;
    void *onednn;
    int (*create)(dnnl_engine_t *, int, size_t);
    if (calls++ == 0) {
        *engine = NULL;
        return 1; /* dnnl_out_of_memory */
    }
    onednn = dlopen("libdnnl.so.3", RTLD_LAZY | RTLD_NOLOAD);
    create = (int (*)(dnnl_engine_t *, int, size_t))dlsym(onednn, "dnnl_engine_create");
    return create(engine, kind, index);
}
