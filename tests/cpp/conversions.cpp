// Compiled once per instruction set. ONEDSL_ISA is its name.

#include "conversions.hpp"

#include <cstring>

#include "native/vector.hpp"
#include "native/vector_pair.hpp"

namespace onedsl::native::ONEDSL_ISA {
namespace {

// Call convert(T{}, bits + i, i) for each `step`-th index, where T is the vector code's type.
template <class Bits, class Convert>
void for_type(const DataType type, Bits* const bits, const std::size_t count, const int step,
              const Convert& convert) {
  for (std::size_t i = 0; i < count; i += static_cast<std::size_t>(step)) {
    if (type == DataType::bf16) {
      convert(Bf16{}, bits + i, i);
    } else {
      convert(F16{}, bits + i, i);
    }
  }
}

template <class T>
VecPair load_pair_in_order(const float* const values) {
  if constexpr (splits_even_odd<T>) {
    float even[lanes];
    float odd[lanes];
    for (int i = 0; i < lanes; ++i) {
      even[i] = values[2 * i];
      odd[i] = values[2 * i + 1];
    }
    return {load(even), load(odd)};
  } else {
    return {load(values), load(values + lanes)};
  }
}

template <class T>
void store_pair_in_order(const VecPair& pair, float* const values) {
  float a[lanes];
  float b[lanes];
  store(a, pair.a);
  store(b, pair.b);
  for (int i = 0; i < lanes; ++i) {
    values[splits_even_odd<T> ? 2 * i : i] = a[i];
    values[splits_even_odd<T> ? 2 * i + 1 : lanes + i] = b[i];
  }
}

// Cast bits to the vector code's 16-bit types, which contain nothing else.
template <class T>
const T* typed(const std::uint16_t* const bits) {
  static_assert(sizeof(T) == sizeof *bits);
  return reinterpret_cast<const T*>(bits);
}
template <class T>
T* typed(std::uint16_t* const bits) {
  static_assert(sizeof(T) == sizeof *bits);
  return reinterpret_cast<T*>(bits);
}

void to_f32(const DataType type, const std::uint16_t* const from, float* const to,
            const std::size_t count) {
  for_type(type, from, count, lanes, [&](auto tag, const std::uint16_t* const p, std::size_t i) {
    store(to + i, load(typed<decltype(tag)>(p)));
  });
}

void pairs_to_f32(const DataType type, const std::uint16_t* const from, float* const to,
                  const std::size_t count) {
  for_type(type, from, count, 2 * lanes,
           [&](auto tag, const std::uint16_t* const p, std::size_t i) {
             using T = decltype(tag);
             store_pair_in_order<T>(load_pair(typed<T>(p)), to + i);
           });
}

void from_f32(const DataType type, const float* const from, std::uint16_t* const to,
              const std::size_t count) {
  for_type(type, to, count, lanes, [&](auto tag, std::uint16_t* const p, std::size_t i) {
    store(typed<decltype(tag)>(p), load(from + i));
  });
}

void pairs_from_f32(const DataType type, const float* const from, std::uint16_t* const to,
                    const std::size_t count) {
  for_type(type, to, count, 2 * lanes, [&](auto tag, std::uint16_t* const p, std::size_t i) {
    using T = decltype(tag);
    store_pair(typed<T>(p), load_pair_in_order<T>(from + i));
  });
}

void stream_pairs_from_f32(const DataType type, const float* const from, std::uint16_t* const to,
                           const std::size_t count) {
  for_type(type, to, count, 2 * lanes, [&](auto tag, std::uint16_t* const p, std::size_t i) {
    using T = decltype(tag);
    stream_pair(typed<T>(p), load_pair_in_order<T>(from + i));
  });
  _mm_sfence();
}

}  // namespace

const test::Conversions& conversions() {
  static constexpr test::Conversions all{to_f32, pairs_to_f32, from_f32, pairs_from_f32,
                                         stream_pairs_from_f32};
  return all;
}

}  // namespace onedsl::native::ONEDSL_ISA
