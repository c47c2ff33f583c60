#pragma once

#include <cstddef>

#include "ports.hpp"

namespace onedsl {

// The result of the reduce pass and an input of the apply pass: the number of elements per
// statistic, and two numbers for each statistic. In the gradient these are the sums of diff_dst and
// of diff_dst * xhat; in the forward pass the mean and the sum of squared deviations from it.
struct Totals {
  double* count = nullptr;
  double* first = nullptr;
  double* second = nullptr;
};

// The totals in one vector of 1 + 2 * channels elements.
constexpr Totals totals_in(double* const vector, const std::ptrdiff_t channels) noexcept {
  return {vector, vector + 1, vector + 1 + channels};
}

// The memory of one run. A pointer is null if the optional input is absent or the output is not
// computed; the pointers of `totals` are null if one run does both passes.
struct Pointers {
  PerPort<Input, const void*> in;
  PerPort<Output, void*> out;
  Totals totals;
  // The outputs are memory that the caller provides, which need not be in a cache. False if they
  // have just been allocated: allocators return recently used memory first.
  bool cold_outputs = false;
};

}  // namespace onedsl
