#pragma once

#include <cstdint>

namespace onedsl {

// Computes out = a + 2 * b, which reads two tensors and writes one: the memory bandwidth that
// benchmarks compare with. Non-temporal stores bypass the caches; ordinary stores read each cache
// line of `out` first. Adds integers, because floating-point addition is slow for subnormal
// numbers, which pairs of 16-bit numbers may happen to be. Pointers must be aligned to 16 bytes and
// size must be a multiple of 4.
void triad(std::int32_t* out, const std::int32_t* a, const std::int32_t* b, std::int64_t size,
           bool non_temporal, int num_threads);

}  // namespace onedsl
