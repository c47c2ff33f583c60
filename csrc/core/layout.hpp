#pragma once

#include <cstdint>
#include <vector>

#include "ports.hpp"

namespace onedsl {

// One axis of a tensor. The stride is in elements and may have any value, 0 and negative ones
// included.
struct Axis {
  std::int64_t size = 1;
  std::int64_t stride = 1;
};

// Where the elements of a tensor are in memory, from its first element on: its axes in the memory
// order of src, slowest first, neighbors merged where possible. Empty: dense in that order.
using Layout = std::vector<Axis>;

// The layouts of a call's tensors. Those of other ports are not used.
struct Layouts {
  PerPort<Input, Layout> in;
  PerPort<Output, Layout> out;

  Layout& of(const Input port) { return in[port]; }
  Layout& of(const Output port) { return out[port]; }
};

}  // namespace onedsl
