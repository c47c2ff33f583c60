#include "triad.hpp"

#include <emmintrin.h>

namespace onedsl {

void triad(std::int32_t* const out, const std::int32_t* const a, const std::int32_t* const b,
           const std::int64_t size, const bool non_temporal, const bool parallel) {
  const auto compute = [&](const std::int64_t i, const auto store) {
    const auto load = [i](const std::int32_t* const p) {
      return _mm_load_si128(reinterpret_cast<const __m128i*>(p + i));
    };
    const __m128i twice_b = _mm_slli_epi32(load(b), 1);
    store(reinterpret_cast<__m128i*>(out + i), _mm_add_epi32(load(a), twice_b));
  };
#pragma omp parallel if (parallel)
  {
    if (non_temporal) {
#pragma omp for schedule(static) nowait
      for (std::int64_t i = 0; i < size; i += 4) {
        compute(i, [](__m128i* const to, const __m128i value) { _mm_stream_si128(to, value); });
      }
      _mm_sfence();
    } else {
#pragma omp for schedule(static) nowait
      for (std::int64_t i = 0; i < size; i += 4) {
        compute(i, [](__m128i* const to, const __m128i value) { _mm_store_si128(to, value); });
      }
    }
  }
}

}  // namespace onedsl
