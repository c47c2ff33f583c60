#pragma once

#include "../../core/types.hpp"

namespace onedsl::native {

// The function min(max(y, 0), clip), rounded to the type of the tensor. The thresholds apply to y
// before rounding: the result is 0 for y <= zero_threshold and clip for y >= clip_threshold, and
// the gradient is zero in both cases. NaN stays NaN.
struct Relu {
  float clip = 0;  // a value of the tensor's type
  float zero_threshold = 0;
  float clip_threshold = 0;  // NaN if there is no clip, so that y >= clip_threshold is false
};

// Return the ReLU with a clip, which is rounded to f32 and then to the tensor's type. Infinity
// means no clip.
Relu relu_of(double clip, DataType type);

}  // namespace onedsl::native
