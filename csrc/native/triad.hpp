#pragma once

#include <cstdint>

namespace onedsl {

// out = a + 3 * b with non-temporal stores: the machine's own rate for two tensors read and one
// written, the least traffic that the op can have. Pointers are aligned to 16 bytes and size is a
// multiple of 4.
void triad(float* out, const float* a, const float* b, std::int64_t size, int num_threads);

}  // namespace onedsl
