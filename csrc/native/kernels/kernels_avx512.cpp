#define ONEDSL_ISA avx512
#include "kernels.inl"
