#pragma once

#include "../core/types.hpp"

namespace onedsl::native {

// min(max(y, 0), clip), rounded to a tensor's type. What it gives is known before it is rounded:
// 0 for y <= zero_to, clip for y >= clip_from, and there its gradient is zero. NaN goes through.
struct Relu {
  float clip = 0;  // of the tensor's type
  float zero_to = 0;
  float clip_from = 0;  // NaN, which nothing reaches, where there is no clip
};

// The clip is rounded to f32 and then to the tensor's type. Infinity: there is none.
Relu relu_of(double clip, DataType type);

}  // namespace onedsl::native
