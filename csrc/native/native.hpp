#pragma once

#include "../problem.hpp"

// onedsl's own kernels, for what oneDNN cannot run or runs slowly.
namespace onedsl::native {

// The results are the same bits for any num_threads >= 1. May be called by many threads at once.
void run(const Problem& problem, int num_threads, const Arguments& arguments);

// The instruction set that the kernels of this process use: "avx512", "avx2" or "baseline". The
// environment variables ONEDSL_MAX_CPU_ISA, or else ONEDNN_MAX_CPU_ISA, cap it (read once).
const char* isa_name();

// The size of the last cache that a core shares with its neighbours, as the CPU itself says: on
// some virtual machines the system reports many such caches as one.
std::int64_t last_cache_bytes();

}  // namespace onedsl::native
