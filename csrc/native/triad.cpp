#include "triad.hpp"

#include <emmintrin.h>

namespace onedsl {

void triad(std::int32_t* const out, const std::int32_t* const a, const std::int32_t* const b,
           const std::int64_t size, const int num_threads) {
  const auto load = [](const std::int32_t* const p) {
    return _mm_load_si128(reinterpret_cast<const __m128i*>(p));
  };
#pragma omp parallel num_threads(num_threads)
  {
#pragma omp for schedule(static) nowait
    for (std::int64_t i = 0; i < size; i += 4) {
      const __m128i twice_b = _mm_slli_epi32(load(b + i), 1);
      _mm_stream_si128(reinterpret_cast<__m128i*>(out + i), _mm_add_epi32(load(a + i), twice_b));
    }
    _mm_sfence();
  }
}

}  // namespace onedsl
