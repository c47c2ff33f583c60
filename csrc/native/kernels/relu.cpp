#include "relu.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "../../core/convert_16bit.hpp"

namespace onedsl::native {
namespace {

constexpr std::uint32_t bits_of_infinity = 0x7f800000;

float from_bits(const std::uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Return the bits of the smallest positive float that from_f32 rounds to `target` or more. This is
// a binary search over bits, because non-negative floats have the order of their bits.
template <class FromF32>
std::uint32_t smallest_rounded_to(const std::uint16_t target, const FromF32& from_f32) {
  std::uint32_t low = 0;
  std::uint32_t high = bits_of_infinity;
  while (high - low > 1) {
    const std::uint32_t middle = low + (high - low) / 2;
    (from_f32(from_bits(middle)) < target ? low : high) = middle;
  }
  return high;
}

template <class FromF32, class ToF32>
Relu relu_of_16bit(const float clip, const FromF32& from_f32, const ToF32& to_f32) {
  const std::uint16_t target = from_f32(clip);
  Relu relu;
  relu.clip = to_f32(target);
  relu.zero_threshold = from_bits(smallest_rounded_to(1, from_f32) - 1);
  // If the clip is rounded to zero, the thresholds are equal and the gradient is zero everywhere.
  relu.clip_threshold =
      target > 0 ? from_bits(smallest_rounded_to(target, from_f32)) : relu.zero_threshold;
  return relu;
}

}  // namespace

Relu relu_of(const double clip, const DataType type) {
  const auto f32_clip = static_cast<float>(clip);
  Relu relu{f32_clip, 0, f32_clip};
  if (type == DataType::bf16) relu = relu_of_16bit(f32_clip, f32_to_bf16, bf16_to_f32);
  if (type == DataType::f16) relu = relu_of_16bit(f32_clip, f32_to_f16, f16_to_f32);
  if (std::isinf(clip)) relu.clip_threshold = std::numeric_limits<float>::quiet_NaN();
  return relu;
}

}  // namespace onedsl::native
