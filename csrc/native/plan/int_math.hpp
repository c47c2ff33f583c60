#pragma once

#include "../kernels/summation_order.hpp"

// Integer arithmetic. The kernels must not use it: see kernels.hpp.
namespace onedsl::native {

constexpr Index divide_up(const Index a, const Index b) { return (a + b - 1) / b; }
constexpr Index round_up(const Index a, const Index b) { return divide_up(a, b) * b; }

// Return the i-th of n contiguous shares of [0, count), whose sizes differ by at most one.
constexpr Range share_of(const Index count, const Index i, const Index n) {
  return {count * i / n, count * (i + 1) / n};
}

}  // namespace onedsl::native
