#pragma once

// One vector of f32 and what the kernels do with it, on the instruction set that this file is
// compiled for. Everything is in an unnamed namespace inside one named after the instruction set:
// two builds of it must never be merged by the linker.

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace onedsl::native::ONEDSL_ISA {
namespace {

template <class To, class From>
To reinterpret(From from) {
  static_assert(sizeof(To) == sizeof(From));
  return (To)from;
}

struct Bf16 {
  std::uint16_t bits;
};

struct F16 {
  std::uint16_t bits;
};

#if defined(__AVX512F__)
using Vec = __m512;
#elif defined(__AVX2__)
using Vec = __m256;
#else  // baseline x86-64: SSE2
using Vec = __m128;
#endif
// Arithmetic on Vec and Words is by GCC's and Clang's vector operators.
using Words = std::uint32_t __attribute__((vector_size(sizeof(Vec))));

#if defined(__AVX512F__)

using Half = __m256;
using Doubles = __m512d;

inline Vec broadcast(float value) { return _mm512_set1_ps(value); }
inline Vec multiply_add(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec subtract_product(Vec c, Vec a, Vec b) { return _mm512_fnmadd_ps(a, b, c); }
inline Half lower(Vec v) { return _mm512_maskz_extractf32x8_ps(0xff, v, 0); }
inline Half upper(Vec v) { return _mm512_maskz_extractf32x8_ps(0xff, v, 1); }

inline __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1); }
inline Vec select_first(int n, Vec a, Vec b) { return _mm512_mask_mov_ps(b, first(n), a); }

// GCC 12 takes the intrinsics without a mask for reading uninitialized memory (its bug 105593).
using Half16 = __m256i;  // a Vec narrowed to a 16-bit type
inline Words words_of(Half16 v) {
  return reinterpret<Words>(_mm512_maskz_cvtepu16_epi32(0xffff, v));
}
inline Half16 low_halves(Words w) {
  return _mm512_maskz_cvtepi32_epi16(0xffff, reinterpret<__m512i>(w));
}
inline Vec widen_f16(Half16 v) { return _mm512_maskz_cvtph_ps(0xffff, v); }
inline Half16 narrow_f16(Vec v) {
  return _mm512_maskz_cvtps_ph(0xffff, v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
inline void stream(float* p, Vec v) { _mm512_stream_ps(p, v); }
inline Vec load_first(int n, const float* p) { return _mm512_maskz_loadu_ps(first(n), p); }
inline void store_first(int n, float* p, Vec v) { _mm512_mask_storeu_ps(p, first(n), v); }

inline Half16 load_bits(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
inline Half16 load_bits_first(int n, const void* p) {
  return _mm256_maskz_loadu_epi16(first(n), p);
}
inline void store_bits(void* p, Half16 v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
inline void stream_bits(void* p, Half16 v) { _mm256_stream_si256(static_cast<__m256i*>(p), v); }
inline void store_bits_first(int n, void* p, Half16 v) { _mm256_mask_storeu_epi16(p, first(n), v); }

#elif defined(__AVX2__)

using Half = __m128;
using Doubles = __m256d;

inline Vec broadcast(float value) { return _mm256_set1_ps(value); }
inline Vec multiply_add(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec subtract_product(Vec c, Vec a, Vec b) { return _mm256_fnmadd_ps(a, b, c); }
inline Half lower(Vec v) { return _mm256_castps256_ps128(v); }
inline Half upper(Vec v) { return _mm256_extractf128_ps(v, 1); }

inline __m256i first(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline Vec select_first(int n, Vec a, Vec b) {
  return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(first(n)));
}

using Half16 = __m128i;
inline Words words_of(Half16 v) { return reinterpret<Words>(_mm256_cvtepu16_epi32(v)); }
inline Half16 low_halves(Words w) {
  const __m256i bits = reinterpret<__m256i>(w);
  return _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
}
inline Vec widen_f16(Half16 v) { return _mm256_cvtph_ps(v); }
inline Half16 narrow_f16(Vec v) {
  return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

inline Vec load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
inline void stream(float* p, Vec v) { _mm256_stream_ps(p, v); }
inline Vec load_first(int n, const float* p) { return _mm256_maskload_ps(p, first(n)); }
inline void store_first(int n, float* p, Vec v) { _mm256_maskstore_ps(p, first(n), v); }

inline Half16 load_bits(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
inline void store_bits(void* p, Half16 v) { _mm_storeu_si128(static_cast<__m128i*>(p), v); }
inline void stream_bits(void* p, Half16 v) { _mm_stream_si128(static_cast<__m128i*>(p), v); }

#else
using Doubles = __m128d;

inline Vec broadcast(float value) { return _mm_set1_ps(value); }
inline Vec multiply_add(Vec a, Vec b, Vec c) { return a * b + c; }
inline Vec subtract_product(Vec c, Vec a, Vec b) { return c - a * b; }

inline Vec select_first(int n, Vec a, Vec b) {
  return Words{0, 1, 2, 3} < static_cast<std::uint32_t>(n) ? a : b;
}

using Half16 = std::uint64_t;
inline Words words_of(Half16 v) {
  const __m128i bits = _mm_cvtsi64_si128(static_cast<long long>(v));
  return reinterpret<Words>(_mm_unpacklo_epi16(bits, _mm_setzero_si128()));
}
inline Half16 low_halves(Words w) {
  // Sign-extended, so that the signed saturation of the pack changes nothing.
  const __m128i bits = _mm_srai_epi32(reinterpret<__m128i>(w << 16), 16);
  return static_cast<Half16>(_mm_cvtsi128_si64(_mm_packs_epi32(bits, bits)));
}

// Baseline x86-64 has no instruction for f16.
inline Vec widen_f16(Half16 v) {
  const Words half = words_of(v);
  const Words magnitude = (half & 0x7fff) << 13;
  // 2^112 moves the exponent's bias, and makes subnormals normal.
  const Words finite = reinterpret<Words>(reinterpret<Vec>(magnitude) * broadcast(0x1p112f));
  const Words special = magnitude | 0x7f800000;
  return reinterpret<Vec>((half & 0x8000) << 16 | (magnitude >= 0x0f800000 ? special : finite));
}
inline Half16 narrow_f16(Vec v) {
  const Words bits = reinterpret<Words>(v);
  const Words magnitude = bits & 0x7fffffff;
  const Words normal = (magnitude + (magnitude >> 13 & 1) + (0xfffu - (112u << 23))) >> 13;
  // The last place of 0.5 is 2^-24, that of a subnormal f16: the addition does the rounding.
  const Vec half = broadcast(0.5f);
  const Words subnormal =
      reinterpret<Words>(reinterpret<Vec>(magnitude) + half) - reinterpret<Words>(half);
  const Words nan = (magnitude >> 13 & 0x3ff) | 0x7e00;
  const Words infinity = Words{} + 0x7c00;
  const Words special = magnitude > 0x7f800000 ? nan : infinity;
  const Words finite = magnitude < (113u << 23) ? subnormal : normal;
  const Words result = magnitude >= 0x477ff000 ? special : finite;  // 65520 rounds to infinity
  return low_halves((bits >> 16 & 0x8000) | result);
}

inline Vec load(const float* p) { return _mm_loadu_ps(p); }
inline void store(float* p, Vec v) { _mm_storeu_ps(p, v); }
inline void stream(float* p, Vec v) { _mm_stream_ps(p, v); }
inline Vec load_first(int n, const float* p) {
  Vec v = _mm_setzero_ps();
  std::memcpy(&v, p, static_cast<std::size_t>(n) * sizeof(float));
  return v;
}
inline void store_first(int n, float* p, Vec v) {
  std::memcpy(p, &v, static_cast<std::size_t>(n) * sizeof(float));
}

inline Half16 load_bits(const void* p) {
  Half16 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void store_bits(void* p, Half16 v) { std::memcpy(p, &v, sizeof v); }
inline void stream_bits(void* p, Half16 v) {
  _mm_stream_si64(static_cast<long long*>(p), static_cast<long long>(v));
}

#endif

inline Vec widen_bf16(Half16 v) { return reinterpret<Vec>(words_of(v) << 16); }
// The upper 16 bits are the bf16.
inline Words round_bf16_bits(Vec v) {
  const Words bits = reinterpret<Words>(v);
  const Words rounded = bits + 0x7fff + (bits >> 16 & 1);
  const Words nan = Words{} + 0x7fc00000;
  return v != v ? nan : rounded;
}
inline Half16 round_bf16(Vec v) { return low_halves(round_bf16_bits(v) >> 16); }
inline Half16 narrow_bf16(Vec v) {
#if defined(__AVX512BF16__)
  // The instruction takes subnormal numbers for zero.
  constexpr int subnormal = 0x20;
  if (__builtin_expect(_mm512_fpclass_ps_mask(v, subnormal) == 0, 1))
    return reinterpret<Half16>(_mm512_cvtneps_pbh(v));
#endif
  return round_bf16(v);
}

#if !defined(__AVX512F__)
inline Half16 load_bits_first(int n, const void* p) {
  Half16 v{};
  std::memcpy(&v, p, static_cast<std::size_t>(n) * sizeof(Bf16));
  return v;
}
inline void store_bits_first(int n, void* p, Half16 v) {
  std::memcpy(p, &v, static_cast<std::size_t>(n) * sizeof(Bf16));
}
#endif

inline Vec load(const Bf16* p) { return widen_bf16(load_bits(p)); }
inline void store(Bf16* p, Vec v) { store_bits(p, narrow_bf16(v)); }
inline void stream(Bf16* p, Vec v) { stream_bits(p, narrow_bf16(v)); }
inline Vec load_first(int n, const Bf16* p) { return widen_bf16(load_bits_first(n, p)); }
inline void store_first(int n, Bf16* p, Vec v) { store_bits_first(n, p, narrow_bf16(v)); }

inline Vec load(const F16* p) { return widen_f16(load_bits(p)); }
inline void store(F16* p, Vec v) { store_bits(p, narrow_f16(v)); }
inline void stream(F16* p, Vec v) { stream_bits(p, narrow_f16(v)); }
inline Vec load_first(int n, const F16* p) { return widen_f16(load_bits_first(n, p)); }
inline void store_first(int n, F16* p, Vec v) { store_bits_first(n, p, narrow_f16(v)); }

constexpr int lanes = static_cast<int>(sizeof(Vec) / sizeof(float));

// Two vectors of neighbouring elements: the first `lanes` and the next, or, of bf16, the even and
// the odd ones, which is how a shift and a mask take them apart.
struct Two {
  Vec a;
  Vec b;
};
template <class T>
constexpr bool split_in_two = false;
template <>
constexpr bool split_in_two<Bf16> = true;

inline Two split_bf16(Words bits) {
  return {reinterpret<Vec>(bits << 16), reinterpret<Vec>(bits & 0xffff0000)};
}
inline Words join_bf16(const Two& two) {
#if defined(__AVX512BF16__)
  constexpr int subnormal = 0x20;
  const unsigned special = static_cast<unsigned>(_mm512_fpclass_ps_mask(two.a, subnormal) |
                                                 _mm512_fpclass_ps_mask(two.b, subnormal));
  if (__builtin_expect(special == 0, 1)) {
    using Shorts = std::uint16_t __attribute__((vector_size(sizeof(Vec))));
    constexpr Shorts in_turn = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i pair = reinterpret<__m512i>(_mm512_cvtne2ps_pbh(two.b, two.a));
    return reinterpret<Words>(
        _mm512_maskz_permutexvar_epi16(0xffffffff, reinterpret<__m512i>(in_turn), pair));
  }
#endif
  return round_bf16_bits(two.a) >> 16 | (round_bf16_bits(two.b) & 0xffff0000);
}

template <class T>
inline Two load_two(const T* p) {
  if constexpr (split_in_two<T>) {
    Words bits;
    std::memcpy(&bits, p, sizeof bits);
    return split_bf16(bits);
  } else {
    return {load(p), load(p + lanes)};
  }
}
template <class T>
inline void store_two(T* p, const Two& two) {
  if constexpr (split_in_two<T>) {
    const Words bits = join_bf16(two);
    std::memcpy(p, &bits, sizeof bits);
  } else {
    store(p, two.a);
    store(p + lanes, two.b);
  }
}
template <class T>
inline void stream_two(T* p, const Two& two) {
  if constexpr (split_in_two<T>) {
    const Words bits = join_bf16(two);
    Half16 halves[2];
    static_assert(sizeof halves == sizeof bits);
    std::memcpy(halves, &bits, sizeof bits);
    stream_bits(p, halves[0]);
    stream_bits(p + lanes, halves[1]);
  } else {
    stream(p, two.a);
    stream(p + lanes, two.b);
  }
}

// Of the first n elements; the other lanes are zero.
template <class T>
inline Two load_two_first(int n, const T* p) {
  if constexpr (split_in_two<T>) {
    Words bits{};
    std::memcpy(&bits, p, static_cast<std::size_t>(n) * sizeof(T));
    return split_bf16(bits);
  } else {
    if (n <= lanes) return {load_first(n, p), Vec{}};
    return {load(p), load_first(n - lanes, p + lanes)};
  }
}
template <class T>
inline void store_two_first(int n, T* p, const Two& two) {
  if constexpr (split_in_two<T>) {
    const Words bits = join_bf16(two);
    std::memcpy(p, &bits, static_cast<std::size_t>(n) * sizeof(T));
  } else if (n <= lanes) {
    store_first(n, p, two.a);
  } else {
    store(p, two.a);
    store_first(n - lanes, p + lanes, two.b);
  }
}

// The lanes of a Vec in f64. Memory holds them as `lanes` doubles in the lanes' order.
struct Wide {
  Doubles low;
  Doubles high;
};

inline Wide widen(Vec v) {
#if defined(__AVX512F__)
  return {_mm512_maskz_cvtps_pd(0xff, lower(v)), _mm512_maskz_cvtps_pd(0xff, upper(v))};
#elif defined(__AVX2__)
  return {_mm256_cvtps_pd(lower(v)), _mm256_cvtps_pd(upper(v))};
#else
  return {_mm_cvtps_pd(v), _mm_cvtps_pd(_mm_movehl_ps(v, v))};
#endif
}

inline Wide operator+(const Wide& a, const Wide& b) { return {a.low + b.low, a.high + b.high}; }

inline Wide load_wide(const double* p) {
  Wide wide;
  std::memcpy(&wide.low, p, sizeof wide.low);
  std::memcpy(&wide.high, p + lanes / 2, sizeof wide.high);
  return wide;
}
inline void store_wide(double* p, const Wide& wide) {
  std::memcpy(p, &wide.low, sizeof wide.low);
  std::memcpy(p + lanes / 2, &wide.high, sizeof wide.high);
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
