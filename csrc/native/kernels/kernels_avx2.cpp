#define ONEDSL_ISA avx2
#include "kernels.inl"
