#include "triad.hpp"

#include <emmintrin.h>

namespace onedsl {

void triad(float* const out, const float* const a, const float* const b, const std::int64_t size,
           const int num_threads) {
  const __m128 three = _mm_set1_ps(3.0F);
#pragma omp parallel num_threads(num_threads)
  {
#pragma omp for schedule(static) nowait
    for (std::int64_t i = 0; i < size; i += 4) {
      _mm_stream_ps(out + i, _mm_add_ps(_mm_load_ps(a + i), _mm_mul_ps(three, _mm_load_ps(b + i))));
    }
    _mm_sfence();
  }
}

}  // namespace onedsl
