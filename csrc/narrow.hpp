#pragma once

#include <cstdint>
#include <cstring>

namespace onedsl {

inline float widen_bf16(const std::uint16_t bits) noexcept {
  const std::uint32_t wide = std::uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// To the nearest, ties to even; a NaN stays one.
inline std::uint16_t narrow_bf16(const float value) noexcept {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

}  // namespace onedsl
