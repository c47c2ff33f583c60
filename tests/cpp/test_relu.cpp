#include <cmath>
#include <limits>

#include "call.hpp"
#include "check.hpp"
#include "core/convert_16bit.hpp"
#include "native/relu.hpp"
#include "tests.hpp"

namespace onedsl::test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

double rounded(const DataType type, const float value) {
  switch (type) {
    case DataType::bf16:
      return static_cast<double>(bf16_to_f32(f32_to_bf16(value)));
    case DataType::f16:
      return static_cast<double>(f16_to_f32(f32_to_f16(value)));
    case DataType::f32:
    case DataType::other:
      break;
  }
  return static_cast<double>(value);
}

// Comparing y with the thresholds before rounding is the same as comparing dst.
void check_thresholds(const DataType type, const double clip, const float y) {
  const native::Relu relu = native::relu_of(clip, type);
  const double dst = rounded(type, y);
  const double bound = rounded(type, static_cast<float>(clip));
  check((y <= relu.zero_threshold) == (dst <= 0) || bound == 0, y, " is rounded to ", dst,
        ", and zero_threshold is ", relu.zero_threshold);
  const bool reaches_clip = !std::isinf(clip) && dst >= bound;
  check(bound == 0 || (y >= relu.clip_threshold) == reaches_clip, y, " is rounded to ", dst,
        ", the clip to ", bound, ", and clip_threshold is ", relu.clip_threshold);
  if (bound == 0) {
    check(y <= relu.zero_threshold || y >= relu.clip_threshold,
          "the gradient is not zero although the clip is 0");
  }
  check(static_cast<double>(relu.clip) == bound, "the clip is ", relu.clip, ", not ", bound);
}

}  // namespace

void test_relu() {
  constexpr float inf = std::numeric_limits<float>::infinity();
  for (const DataType type : types) {
    for (const double clip : {6.0, 0.1, 1.0, 1e-3, 65504.0, 65519.0, 65520.0, 1e6, 3e38, 1e-7,
                              2.9e-8, 1e-9, 1e-40, 1e-45, infinity}) {
      const auto bound = static_cast<float>(rounded(type, static_cast<float>(clip)));
      const auto around = [&](const float middle) {
        float y = middle;
        for (int i = 0; i < 5; ++i) y = std::nextafter(y, -inf);
        for (int i = 0; i < 10; ++i, y = std::nextafter(y, inf)) check_thresholds(type, clip, y);
      };
      around(0);
      around(bound);
      for (const float midpoint :
           {0x1p-25F, 0x1p-24F, 0x1p-134F, 0x1p-133F, 65520.0F, 0x1.ffp127F}) {
        around(midpoint);
      }
      // Half the distance to the next value of the type below the clip, and the whole distance.
      for (const int bits : {8, 9, 10, 11, 12, 13}) {
        const float distance = std::ldexp(1.0F, std::ilogb(static_cast<float>(clip)) - bits);
        if (std::isfinite(clip)) around(bound - distance);
      }
    }
  }
}

}  // namespace onedsl::test
