#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "types.hpp"

// Scalar conversions between f32 and the 16-bit types, used for statistics only: the kernels
// convert tensors with vector instructions.
namespace onedsl {

inline float bf16_to_f32(const std::uint16_t bits) noexcept {
  const std::uint32_t wide = std::uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// Conversions to 16 bits round to nearest, ties to even, and keep NaN.
inline std::uint16_t f32_to_bf16(const float value) noexcept {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

inline float f16_to_f32(const std::uint16_t bits) noexcept {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000U} << 16;
  const std::uint32_t exponent = bits >> 10 & 0x1fU;
  const std::uint32_t fraction = bits & 0x3ffU;
  std::uint32_t wide = 0;
  if (exponent == 0) {
    // Zero or subnormal: a multiple of 2^-24, which f32 represents exactly.
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    std::memcpy(&wide, &magnitude, sizeof wide);
  } else {
    wide = (exponent == 0x1fU ? 0x7f800000U : (exponent + 112U) << 23) | fraction << 13;
  }
  wide |= sign;
  float value = 0;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

inline std::uint16_t f32_to_f16(const float value) noexcept {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  const std::uint32_t sign = bits >> 16 & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  std::uint32_t narrow = 0;
  if (magnitude > 0x7f800000U) {
    narrow = 0x7e00U | (magnitude >> 13 & 0x3ffU);
  } else if (magnitude >= 0x477ff000U) {
    narrow = 0x7c00U;  // 65520 and above round to infinity
  } else if (magnitude < 0x38800000U) {
    // Subnormal: the unit in the last place of 0.5 is 2^-24, so the addition does the rounding.
    float shifted = 0;
    std::memcpy(&shifted, &magnitude, sizeof shifted);
    shifted += 0.5F;
    std::memcpy(&narrow, &shifted, sizeof narrow);
    narrow -= 0x3f000000U;
  } else {
    narrow = (magnitude - 0x38000000U + 0xfffU + (magnitude >> 13 & 1U)) >> 13;
  }
  return static_cast<std::uint16_t>(sign | narrow);
}

// Convert `count` numbers to another type, or copy them. One of two different types is f32.
inline void convert(const DataType from_type, const void* const from, const DataType to_type,
                    void* const to, const std::size_t count) {
  if (from_type == to_type) {
    std::memcpy(to, from, count * size_of(to_type));
  } else if (to_type == DataType::f32) {
    const auto* const bits = static_cast<const std::uint16_t*>(from);
    std::transform(bits, bits + count, static_cast<float*>(to),
                   from_type == DataType::bf16 ? bf16_to_f32 : f16_to_f32);
  } else {
    const auto* const values = static_cast<const float*>(from);
    std::transform(values, values + count, static_cast<std::uint16_t*>(to),
                   to_type == DataType::bf16 ? f32_to_bf16 : f32_to_f16);
  }
}

}  // namespace onedsl
