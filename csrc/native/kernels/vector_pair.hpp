#pragma once

// Pairs of vectors, and vectors of doubles. See vector.hpp.

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "vector.hpp"

namespace onedsl::native::ONEDSL_ISA {
namespace {

// Two vectors of neighboring elements. f32 and f16: the first `lanes` elements and the next ones.
// bf16: the even elements and the odd ones, because a shift and a mask separate these.
struct VecPair {
  Vec a;
  Vec b;
};
constexpr std::int64_t pair_lanes = std::int64_t{2} * lanes;

template <class T>
constexpr bool splits_even_odd = false;
template <>
constexpr bool splits_even_odd<Bf16> = true;

inline VecPair split_bf16(Words bits) {
  // Keeps the compiler from loading them twice, as an operand of each instruction.
  asm("" : "+v"(bits));
  return {reinterpret<Vec>(bits << 16), reinterpret<Vec>(bits & 0xffff0000)};
}
inline Words join_bf16(const VecPair& pair) {
#if defined(__AVX512BF16__)
  if (__builtin_expect(_kortestz_mask16_u8(subnormal_lanes(pair.a), subnormal_lanes(pair.b)), 1)) {
    using Shorts = std::uint16_t __attribute__((vector_size(sizeof(Vec))));
    constexpr Shorts interleaved = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                    8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i split = reinterpret<__m512i>(_mm512_cvtne2ps_pbh(pair.b, pair.a));
    return reinterpret<Words>(
        _mm512_maskz_permutexvar_epi16(0xffffffff, reinterpret<__m512i>(interleaved), split));
  }
#endif
  const Words even = round_bf16_bits(pair.a) >> 16;
  const Words odd = round_bf16_bits(pair.b);
#if defined(__AVX2__) && !defined(__AVX512F__)
  return reinterpret<Words>(
      _mm256_blend_epi16(reinterpret<__m256i>(even), reinterpret<__m256i>(odd), 0xaa));
#else
  return even | (odd & 0xffff0000);
#endif
}

template <int vectors>
struct VectorsOf;
template <>
struct VectorsOf<1> {
  using Type = Vec;
};
template <>
struct VectorsOf<2> {
  using Type = VecPair;
};
// A Vec or a VecPair.
template <int vectors>
using Vectors = typename VectorsOf<vectors>::Type;

// Loads and stores of one or two vectors, as those of vector.hpp.
template <int vectors, class T>
inline Vectors<vectors> load_as(const T* p) {
  if constexpr (vectors == 1) {
    return load(p);
  } else if constexpr (splits_even_odd<T>) {
    Words bits;
    std::memcpy(&bits, p, sizeof bits);
    return split_bf16(bits);
  } else {
    return {load(p), load(p + lanes)};
  }
}
template <class T>
inline void store(T* p, const VecPair& pair) {
  if constexpr (splits_even_odd<T>) {
    const Words bits = join_bf16(pair);
    std::memcpy(p, &bits, sizeof bits);
  } else {
    store(p, pair.a);
    store(p + lanes, pair.b);
  }
}
template <class T>
inline void stream(T* p, const VecPair& pair) {
  if constexpr (splits_even_odd<T>) {
    const Words bits = join_bf16(pair);
    Half16 halves[2];
    static_assert(sizeof halves == sizeof bits);
    std::memcpy(halves, &bits, sizeof bits);
    stream_bits(p, halves[0]);
    stream_bits(p + lanes, halves[1]);
  } else {
    stream(p, pair.a);
    stream(p + lanes, pair.b);
  }
}

// Load the first n elements; the other lanes are zero.
template <int vectors, class T>
inline Vectors<vectors> load_first_as(int n, const T* p) {
  if constexpr (vectors == 1) {
    return load_first(n, p);
  } else if constexpr (splits_even_odd<T>) {
    return split_bf16(load_bits_first<Words>(n, p));
  } else {
    if (n <= lanes) return {load_first(n, p), Vec{}};
    return {load(p), load_first(n - lanes, p + lanes)};
  }
}
template <class T>
inline void store_first(int n, T* p, const VecPair& pair) {
  if constexpr (splits_even_odd<T>) {
    store_bits_first(n, p, join_bf16(pair));
  } else if (n <= lanes) {
    store_first(n, p, pair.a);
  } else {
    store(p, pair.a);
    store_first(n - lanes, p + lanes, pair.b);
  }
}

// Return the first n elements of a and the others of b.
template <class T>
inline Vec select_elements(int n, const Vec a, const Vec b) {
  return select_first(n, a, b);
}
template <class T>
inline VecPair select_elements(int n, const VecPair& a, const VecPair& b) {
  if constexpr (splits_even_odd<T>) {
    return {select_first((n + 1) / 2, a.a, b.a), select_first(n / 2, a.b, b.b)};
  } else {
    if (n <= lanes) return {select_first(n, a.a, b.a), b.b};
    return {a.a, select_first(n - lanes, a.b, b.b)};
  }
}

// Moves the even elements to the first half, and the odd ones to the second, or back.
inline Vec permute(const Vec v, const Words indices) {
#if defined(__AVX512F__)
  return _mm512_maskz_permutexvar_ps(0xffff, reinterpret<__m512i>(indices), v);
#elif defined(__AVX2__)
  return _mm256_permutevar8x32_ps(v, reinterpret<__m256i>(indices));
#else
  static_cast<void>(indices);  // 0, 2, 1, 3
  return _mm_shuffle_ps(v, v, _MM_SHUFFLE(3, 1, 2, 0));
#endif
}
inline Vec split_even_odd(const Vec v) {
  Words indices{};
  for (unsigned int i = 0; i < lanes; ++i) indices[i] = 2 * i % lanes + 2 * i / lanes;
  return permute(v, indices);
}
inline Vec join_even_odd(const Vec v) {
  Words indices{};
  for (unsigned int i = 0; i < lanes; ++i) indices[i] = i / 2 + i % 2 * (lanes / 2);
  return permute(v, indices);
}

// Accesses: how neighboring elements are read and written, one or two vectors at a time. Lanes that
// an access leaves out are read as zero, or as the lanes of `others`.
template <int vectors>
struct Whole {
  using V = Vectors<vectors>;

  template <class T>
  V read(const T* p) const {
    return load_as<vectors>(p);
  }
  template <class T>
  V read(const T* p, const V& /*others*/) const {
    return load_as<vectors>(p);
  }
  template <class T>
  void write(T* p, const V& v, const bool non_temporal) const {
    if (non_temporal) {
      stream(p, v);
    } else {
      store(p, v);
    }
  }
};

template <int vectors>
struct First {
  using V = Vectors<vectors>;

  int n;

  template <class T>
  V read(const T* p) const {
    return load_first_as<vectors>(n, p);
  }
  template <class T>
  V read(const T* p, const V& others) const {
    return select_elements<T>(n, load_first_as<vectors>(n, p), others);
  }
  template <class T>
  void write(T* p, const V& v, bool /*non_temporal*/) const {
    store_first(n, p, v);
  }
};

// The last n elements. Those before them are readable memory that has been processed already.
template <int vectors>
struct Last {
  using V = Vectors<vectors>;

  int n;

  template <class T>
  V read(const T* p) const {
    return read(p, V{});
  }
  template <class T>
  V read(const T* p, const V& others) const {
    return select_elements<T>(vectors * lanes - n, others, load_as<vectors>(p));
  }
  template <class T>
  void write(T* p, const V& v, bool /*non_temporal*/) const {
    constexpr int size = vectors * lanes;
    T elements[size];
    store(elements, v);
    std::memcpy(p + size - n, elements + size - n, static_cast<std::size_t>(n) * sizeof(T));
  }
};

// The lanes of a Vec as doubles, stored in memory in the order of the lanes.
struct DoubleVec {
  Doubles low;
  Doubles high;
};

inline DoubleVec widen(Vec v) {
#if defined(__AVX512F__)
  return {_mm512_maskz_cvtps_pd(0xff, lower(v)), _mm512_maskz_cvtps_pd(0xff, upper(v))};
#elif defined(__AVX2__)
  return {_mm256_cvtps_pd(lower(v)), _mm256_cvtps_pd(upper(v))};
#else
  return {_mm_cvtps_pd(v), _mm_cvtps_pd(_mm_movehl_ps(v, v))};
#endif
}

inline Vec narrow(const DoubleVec& v) {
#if defined(__AVX512F__)
  const __m512 low = _mm512_castps256_ps512(_mm512_maskz_cvtpd_ps(0xff, v.low));
  return _mm512_maskz_insertf32x8(0xffff, low, _mm512_maskz_cvtpd_ps(0xff, v.high), 1);
#elif defined(__AVX2__)
  return _mm256_set_m128(_mm256_cvtpd_ps(v.high), _mm256_cvtpd_ps(v.low));
#else
  return _mm_movelh_ps(_mm_cvtpd_ps(v.low), _mm_cvtpd_ps(v.high));
#endif
}

inline Doubles square_root(const Doubles v) {
#if defined(__AVX512F__)
  return _mm512_maskz_sqrt_pd(0xff, v);
#elif defined(__AVX2__)
  return _mm256_sqrt_pd(v);
#else
  return _mm_sqrt_pd(v);
#endif
}

// The bits of Doubles, and the result of their comparisons.
using DoubleWords = std::uint64_t __attribute__((vector_size(sizeof(Doubles))));

inline bool any(const DoubleWords condition) {
#if defined(__AVX512F__)
  return _mm512_movepi64_mask(reinterpret<__m512i>(condition)) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_pd(reinterpret<__m256d>(condition)) != 0;
#else
  return _mm_movemask_pd(reinterpret<__m128d>(condition)) != 0;
#endif
}

// Evaluate a formula for both halves.
template <class Formula_, class... Values>
inline DoubleVec for_halves(const Formula_& formula, const Values&... values) {
  return {formula(values.low...), formula(values.high...)};
}

inline DoubleVec operator+(const DoubleVec& a, const DoubleVec& b) {
  return {a.low + b.low, a.high + b.high};
}
inline DoubleVec operator-(const DoubleVec& a, const DoubleVec& b) {
  return {a.low - b.low, a.high - b.high};
}
inline DoubleVec operator*(const DoubleVec& a, const DoubleVec& b) {
  return {a.low * b.low, a.high * b.high};
}
inline DoubleVec operator*(const double a, const DoubleVec& b) { return {a * b.low, a * b.high}; }
inline DoubleVec operator/(const DoubleVec& a, const double b) { return {a.low / b, a.high / b}; }

// Divides values by a number of elements. For a power of two, the product with the inverse has the
// same bits, and takes less time.
class Divisor {
 public:
  explicit Divisor(const double count)
      : count_(count), inverse_(1 / count), is_power_of_two_(has_no_fraction(count)) {}

  friend DoubleVec operator/(const DoubleVec& values, const Divisor& divisor) {
    return divisor.is_power_of_two_ ? divisor.inverse_ * values : values / divisor.count_;
  }

 private:
  static bool has_no_fraction(const double count) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &count, sizeof bits);
    return (bits & 0x000fffffffffffffU) == 0;
  }

  double count_;
  double inverse_;
  bool is_power_of_two_;
};

inline DoubleVec load_doubles(const double* p) {
  DoubleVec doubles;
  std::memcpy(&doubles.low, p, sizeof doubles.low);
  std::memcpy(&doubles.high, p + lanes / 2, sizeof doubles.high);
  return doubles;
}
inline void store_doubles(double* p, const DoubleVec& doubles) {
  std::memcpy(p, &doubles.low, sizeof doubles.low);
  std::memcpy(p + lanes / 2, &doubles.high, sizeof doubles.high);
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
