#pragma once

#include <cstdint>

namespace onedsl {

// Compute out = a + 2 * b, which reads two tensors and writes one: benchmarks compare the kernels
// with its memory bandwidth. Non-temporal stores bypass the caches; ordinary stores read each cache
// line of `out` first. The elements are integers, because floating-point addition is slow for
// subnormal numbers, and the bits of 16-bit tensors may be subnormal f32 numbers. Pointers must be
// aligned to 16 bytes and size must be a multiple of 4. If parallel, OpenMP's whole team computes
// it.
void triad(std::int32_t* out, const std::int32_t* a, const std::int32_t* b, std::int64_t size,
           bool non_temporal, bool parallel);

}  // namespace onedsl
