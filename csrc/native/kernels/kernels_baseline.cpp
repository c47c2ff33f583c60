#define ONEDSL_ISA baseline
#include "kernels.inl"
