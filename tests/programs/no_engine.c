/* A oneDNN that has no CPU engine, to be loaded before the real one. */
#include <stddef.h>
typedef void *dnnl_engine_t;
/* 3 is dnnl_unimplemented: what a SYCL build says where no OpenCL device is. */
int dnnl_engine_create(dnnl_engine_t *engine, int kind, size_t index) {
    (void)kind; (void)index;
    *engine = NULL;
    return 3;
}
