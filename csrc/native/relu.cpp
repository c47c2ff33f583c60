#include "relu.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "../core/convert_16bit.hpp"

namespace onedsl::native {
namespace {

constexpr std::uint32_t bits_of_infinity = 0x7f800000;

float from_bits(const std::uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Floats that are not negative are ordered as their bits are.
template <class Narrow>
std::uint32_t least_rounded_to(const std::uint16_t target, const Narrow& narrow) {
  std::uint32_t below = 0;
  std::uint32_t reached = bits_of_infinity;
  while (reached - below > 1) {
    const std::uint32_t middle = below + (reached - below) / 2;
    (narrow(from_bits(middle)) < target ? below : reached) = middle;
  }
  return reached;
}

template <class Narrow, class Widen>
Relu relu_of_halves(const float clip, const Narrow& narrow, const Widen& widen) {
  const std::uint16_t target = narrow(clip);
  Relu relu;
  relu.clip = widen(target);
  relu.zero_to = from_bits(least_rounded_to(1, narrow) - 1);
  // A clip that is rounded to zero is reached where zero is left.
  relu.clip_from = target > 0 ? from_bits(least_rounded_to(target, narrow)) : relu.zero_to;
  return relu;
}

}  // namespace

Relu relu_of(const double clip, const DataType type) {
  const auto bound = static_cast<float>(clip);
  Relu relu{bound, 0, bound};
  if (type == DataType::bf16) relu = relu_of_halves(bound, f32_to_bf16, bf16_to_f32);
  if (type == DataType::f16) relu = relu_of_halves(bound, f32_to_f16, f16_to_f32);
  if (std::isinf(clip)) relu.clip_from = std::numeric_limits<float>::quiet_NaN();
  return relu;
}

}  // namespace onedsl::native
