#define ONEDSL_ISA avx512_bf16
#include "kernels.inl"
