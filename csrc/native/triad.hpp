#pragma once

#include <cstdint>

namespace onedsl {

// out = a + 2 * b with non-temporal stores: the machine's own rate for two tensors read and one
// written, the least traffic that the op can have. In integers, for floating point is slow where
// the halves of two 16-bit numbers happen to be a subnormal one. Pointers are aligned to 16 bytes
// and size is a multiple of 4.
void triad(std::int32_t* out, const std::int32_t* a, const std::int32_t* b, std::int64_t size,
           int num_threads);

}  // namespace onedsl
