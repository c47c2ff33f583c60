#pragma once

#include <cstdint>

#include "ports.hpp"

namespace onedsl {

// Where the elements of a tensor are that is viewed as (outer, channels, inner), see Geometry: from
// its first element, the element i of channel c of position n is n * position + c * channel + i
// elements away. A distance may be negative, or 0 in inputs.
struct Pitch {
  std::int64_t position = 0;
  std::int64_t channel = 0;

  friend constexpr bool operator==(const Pitch& a, const Pitch& b) noexcept {
    return a.position == b.position && a.channel == b.channel;
  }
};

// The pitches of a call's tensors. Those of other ports are 0.
struct Pitches {
  PerPort<Input, Pitch> in;
  PerPort<Output, Pitch> out;

  Pitch& of(const Input port) noexcept { return in[port]; }
  Pitch& of(const Output port) noexcept { return out[port]; }
  const Pitch& of(const Input port) const noexcept { return in[port]; }
  const Pitch& of(const Output port) const noexcept { return out[port]; }
};

}  // namespace onedsl
