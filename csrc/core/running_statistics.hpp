#pragma once

#include <cstdint>

// PyTorch's conventions for statistics, which differ from oneDNN's.
namespace onedsl {

// Update the running statistics. In PyTorch, momentum is the weight of the new statistics (in
// oneDNN it is the weight of the old ones), and the running variance is unbiased. `count` is the
// number of elements per channel.
inline void update_running(float* const running_mean, float* const running_variance,
                           const float* const mean, const float* const variance,
                           const std::int64_t channels, const double momentum,
                           const double count) noexcept {
  const double unbiased = count / (count - 1);
  const auto mix = [momentum](const float before, const double batch) {
    return static_cast<float>(momentum * batch + (1 - momentum) * static_cast<double>(before));
  };
  for (std::int64_t c = 0; c < channels; ++c) {
    running_mean[c] = mix(running_mean[c], mean[c]);
    running_variance[c] = mix(running_variance[c], static_cast<double>(variance[c]) * unbiased);
  }
}

}  // namespace onedsl
