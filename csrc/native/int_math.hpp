#pragma once

#include "summation_order.hpp"

// Arithmetic of whole numbers. The kernels do not use it: see kernels.hpp.
namespace onedsl::native {

constexpr Index divide_up(const Index a, const Index b) { return (a + b - 1) / b; }
constexpr Index round_up(const Index a, const Index b) { return divide_up(a, b) * b; }

// The i-th of n shares of `count` things in a row: shares differ by one thing at most.
constexpr Range share_of(const Index count, const Index i, const Index n) {
  return {count * i / n, count * (i + 1) / n};
}

}  // namespace onedsl::native
