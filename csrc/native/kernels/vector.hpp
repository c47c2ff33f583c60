#pragma once

// Vectors of f32 and their operations, for the instruction set that the including file is compiled
// for. Everything is in an unnamed namespace inside one named after the instruction set, because
// the linker must never merge two builds of it.

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../../core/types.hpp"

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

// Distance of software prefetching. The CPU's own prefetching restarts on every page and stops at
// the end of a plane. A thread reads this much of each tensor in about the latency of memory; twice
// the distance takes 3 to 7 % longer on a Zen 4, half of it up to a tenth.
constexpr std::int64_t prefetch_bytes = 1024;
template <class T>
constexpr std::int64_t prefetch_distance = prefetch_bytes / static_cast<std::int64_t>(sizeof(T));

// Into the second-level cache: the first has room for few pending requests, and the loads need it.
// The elements may be outside of the tensor, where there is no pointer to them: a prefetch never
// faults. Not __builtin_prefetch: to GCC, a function that does nothing else has no effect, and it
// removes the call.
template <class T>
inline void prefetch(const T* const tensor, const std::int64_t begin, const std::int64_t count) {
  constexpr auto line = cache_line / static_cast<std::int64_t>(sizeof(T));
  const auto base = reinterpret_cast<std::uintptr_t>(tensor);
  for (std::int64_t i = begin; i < begin + count; i += line) {
    const auto address = base + static_cast<std::uintptr_t>(i) * sizeof(T);
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    asm volatile("prefetcht1 %0" : : "m"(*reinterpret_cast<const char*>(address)));
  }
}

#if defined(__AVX512F__)
using Vec = __m512;
#elif defined(__AVX2__)
using Vec = __m256;
#else  // baseline x86-64: SSE2
using Vec = __m128;
#endif
// Vec and Words have the arithmetic operators of GCC's and Clang's vector extensions.
using Words = std::uint32_t __attribute__((vector_size(sizeof(Vec))));

#if defined(__AVX512F__)

using Half = __m256;
using Doubles = __m512d;

inline Vec broadcast(float value) { return _mm512_set1_ps(value); }
inline Vec multiply_add(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec subtract_product(Vec c, Vec a, Vec b) { return _mm512_fnmadd_ps(a, b, c); }
// Return d where neither y <= zero_threshold nor y >= clip_threshold, else 0.
inline Vec where_open(Vec d, Vec y, Vec zero_threshold, Vec clip_threshold) {
  const __mmask16 positive = _mm512_cmp_ps_mask(y, zero_threshold, _CMP_NLE_UQ);
  return _mm512_maskz_mov_ps(_mm512_mask_cmp_ps_mask(positive, y, clip_threshold, _CMP_NGE_UQ), d);
}
// NaN stays, and -0 becomes 0.
inline Vec relu(Vec y, Vec clip) {
  return _mm512_maskz_min_ps(_mm512_cmp_ps_mask(y, broadcast(0), _CMP_NLE_UQ), clip, y);
}
// Return max(y, bound) or min(y, bound); NaN stays.
inline Vec at_least(Vec y, Vec bound) { return _mm512_maskz_max_ps(0xffff, bound, y); }
inline Vec at_most(Vec y, Vec bound) { return _mm512_maskz_min_ps(0xffff, bound, y); }
// Return a where the condition holds, else b.
inline Vec where_positive(Vec y, Vec a, Vec b) {
  return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(y, broadcast(0), _CMP_GT_OQ), a);
}
inline Vec where_at_least(Vec y, Vec bound, Vec a, Vec b) {
  return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(y, bound, _CMP_GE_OQ), a);
}
inline Vec where_less(Vec y, Vec bound, Vec a, Vec b) {
  return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(y, bound, _CMP_LT_OQ), a);
}
inline Half lower(Vec v) { return _mm512_maskz_extractf32x8_ps(0xff, v, 0); }
inline Half upper(Vec v) { return _mm512_maskz_extractf32x8_ps(0xff, v, 1); }

inline __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1); }
inline Vec select_first(int n, Vec a, Vec b) { return _mm512_mask_mov_ps(b, first(n), a); }

// GCC 12 warns that the intrinsics without a mask read uninitialized memory (its bug 105593).
using Half16 = __m256i;  // a Vec narrowed to a 16-bit type
inline Words words_of(Half16 v) {
  return reinterpret<Words>(_mm512_maskz_cvtepu16_epi32(0xffff, v));
}
inline Half16 low_halves(Words w) {
  return _mm512_maskz_cvtepi32_epi16(0xffff, reinterpret<__m512i>(w));
}
inline Vec f16_to_f32(Half16 v) { return _mm512_maskz_cvtph_ps(0xffff, v); }
inline Half16 f32_to_f16(Vec v) {
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
template <class Bits>
inline Bits load_bits_first(int n, const void* p);  // of n 16-bit elements
template <>
inline Half16 load_bits_first(int n, const void* p) {
  return _mm256_maskz_loadu_epi16(first(n), p);
}
inline void store_bits(void* p, Half16 v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
inline void stream_bits(void* p, Half16 v) { _mm256_stream_si256(static_cast<__m256i*>(p), v); }
inline void store_bits_first(int n, void* p, Half16 v) { _mm256_mask_storeu_epi16(p, first(n), v); }

// Words hold the bits of a pair of vectors.
inline __mmask32 first_of_pair(int n) {
  return static_cast<__mmask32>((std::uint64_t{1} << n) - 1);
}
template <>
inline Words load_bits_first(int n, const void* p) {
  return reinterpret<Words>(_mm512_maskz_loadu_epi16(first_of_pair(n), p));
}
inline void store_bits_first(int n, void* p, Words bits) {
  _mm512_mask_storeu_epi16(p, first_of_pair(n), reinterpret<__m512i>(bits));
}

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
inline Vec f16_to_f32(Half16 v) { return _mm256_cvtph_ps(v); }
inline Half16 f32_to_f16(Vec v) {
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
inline Vec f16_to_f32(Half16 v) {
  const Words half = words_of(v);
  const Words magnitude = (half & 0x7fff) << 13;
  // 2^112 moves the exponent's bias, and makes subnormals normal.
  const Words finite = reinterpret<Words>(reinterpret<Vec>(magnitude) * broadcast(0x1p112f));
  const Words special = magnitude | 0x7f800000;
  return reinterpret<Vec>((half & 0x8000) << 16 | (magnitude >= 0x0f800000 ? special : finite));
}
inline Half16 f32_to_f16(Vec v) {
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
  Half16 v = 0;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void store_bits(void* p, Half16 v) { std::memcpy(p, &v, sizeof v); }
inline void stream_bits(void* p, Half16 v) {
  _mm_stream_si64(static_cast<long long*>(p), static_cast<long long>(v));
}

#endif

inline Vec bf16_to_f32(Half16 v) { return reinterpret<Vec>(words_of(v) << 16); }
// The upper 16 bits are the bf16. The lower 16 bits of a NaN must be zero, or it could be rounded
// to infinity or to -0. They are: every NaN comes from a bf16, a coefficient or an operation.
inline Words round_bf16_bits(Vec v) {
  const Words bits = reinterpret<Words>(v);
  return bits + 0x7fff + (bits >> 16 & 1);
}
inline Half16 round_bf16(Vec v) { return low_halves(round_bf16_bits(v) >> 16); }
#if defined(__AVX512BF16__)
// The instructions that narrow to bf16 take subnormal numbers for zero.
inline __mmask16 subnormal_lanes(Vec v) { return _mm512_fpclass_ps_mask(v, 0x20); }
#endif
inline Half16 f32_to_bf16(Vec v) {
#if defined(__AVX512BF16__)
  if (__builtin_expect(subnormal_lanes(v) == 0, 1))
    return reinterpret<Half16>(_mm512_cvtneps_pbh(v));
#endif
  return round_bf16(v);
}

#if !defined(__AVX512F__)
// Of n 16-bit elements: of a vector, or, in Words, of a pair.
template <class Bits>
inline Bits load_bits_first(int n, const void* p) {
  Bits bits{};
  std::memcpy(&bits, p, static_cast<std::size_t>(n) * sizeof(Bf16));
  return bits;
}
template <class Bits>
inline void store_bits_first(int n, void* p, Bits bits) {
  std::memcpy(p, &bits, static_cast<std::size_t>(n) * sizeof(Bf16));
}
#endif

inline Vec load(const Bf16* p) { return bf16_to_f32(load_bits(p)); }
inline void store(Bf16* p, Vec v) { store_bits(p, f32_to_bf16(v)); }
inline void stream(Bf16* p, Vec v) { stream_bits(p, f32_to_bf16(v)); }
inline Vec load_first(int n, const Bf16* p) { return bf16_to_f32(load_bits_first<Half16>(n, p)); }
inline void store_first(int n, Bf16* p, Vec v) { store_bits_first(n, p, f32_to_bf16(v)); }

inline Vec load(const F16* p) { return f16_to_f32(load_bits(p)); }
inline void store(F16* p, Vec v) { store_bits(p, f32_to_f16(v)); }
inline void stream(F16* p, Vec v) { stream_bits(p, f32_to_f16(v)); }
inline Vec load_first(int n, const F16* p) { return f16_to_f32(load_bits_first<Half16>(n, p)); }
inline void store_first(int n, F16* p, Vec v) { store_bits_first(n, p, f32_to_f16(v)); }

#if !defined(__AVX512F__)
inline Vec where_open(Vec d, Vec y, Vec zero_threshold, Vec clip_threshold) {
  const Words closed = reinterpret<Words>((y <= zero_threshold) | (y >= clip_threshold));
  return reinterpret<Vec>(~closed & reinterpret<Words>(d));
}
inline Vec relu(Vec y, Vec clip) {
  const Vec zero = broadcast(0);
  const Vec positive = y <= zero ? zero : y;
  return positive >= clip ? clip : positive;
}
inline Vec at_least(Vec y, Vec bound) { return bound > y ? bound : y; }
inline Vec at_most(Vec y, Vec bound) { return bound < y ? bound : y; }
inline Vec where_positive(Vec y, Vec a, Vec b) { return y > broadcast(0) ? a : b; }
inline Vec where_at_least(Vec y, Vec bound, Vec a, Vec b) { return y >= bound ? a : b; }
inline Vec where_less(Vec y, Vec bound, Vec a, Vec b) { return y < bound ? a : b; }
#endif

// Return -|y|.
inline Vec negative_magnitude(Vec y) {
  return reinterpret<Vec>(reinterpret<Words>(y) | 0x80000000);
}
// Return y with 12 bits of its significand.
inline Vec upper_bits(Vec y) { return reinterpret<Vec>(reinterpret<Words>(y) & 0xfffff000); }

// Return 1 / v for a v far from the limits of f32.
inline Vec inverse(Vec v) {
#if defined(__AVX512F__)
  // Faster than a division, and as precise but for 1 unit in the last place.
  const Vec guess = _mm512_maskz_rcp14_ps(0xffff, v);
  return multiply_add(guess, subtract_product(broadcast(1), v, guess), guess);
#else
  return broadcast(1) / v;
#endif
}

// Return v * 2^n for an integer n from -150 to 0, rounded once. The last bits of `n_bits` are those
// of n.
inline Vec multiply_by_power_of_2(Vec v, [[maybe_unused]] Vec n, [[maybe_unused]] Vec n_bits) {
#if defined(__AVX512F__)
  return _mm512_maskz_scalef_ps(0xffff, v, n);
#else
  // In two factors, because 2^n may be subnormal.
  const Words integer = reinterpret<Words>(n_bits) << 23;
  const Words one = Words{} + 0x3f800000;
  const Words half = reinterpret<Words>(broadcast(0x1p-64f));
  const Words is_small = reinterpret<Words>(n < broadcast(-64));
  const Words rest = one + integer - (is_small & (half - one));
  return v * reinterpret<Vec>(rest) * reinterpret<Vec>((is_small & half) | (~is_small & one));
#endif
}

constexpr int lanes = static_cast<int>(sizeof(Vec) / sizeof(float));

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
