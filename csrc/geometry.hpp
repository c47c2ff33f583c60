#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace onedsl {

// A dense tensor as its memory lies: `channels` blocks of `inner` elements, `outer` times over.
// NXC memory is (N * X, C, 1) and NCX memory is (N, C, X), whatever the rank. Every sum of the
// operation runs over outer and inner, so the order of the axes inside these two does not matter.
struct Geometry {
  std::int64_t outer = 0;
  std::int64_t channels = 0;
  std::int64_t inner = 0;

  constexpr std::int64_t per_channel() const noexcept { return outer * inner; }
  constexpr std::int64_t elements() const noexcept { return outer * channels * inner; }
};

constexpr bool operator==(const Geometry& a, const Geometry& b) noexcept {
  return a.outer == b.outer && a.channels == b.channels && a.inner == b.inner;
}

constexpr std::ptrdiff_t max_rank = 64;  // NumPy's own

// Sees any shape as a Geometry, by the order in which its axes lie in memory. Strides count bytes.
// Nothing if the tensor is not dense (gaps, overlap, negative strides), or has more bytes than can
// be counted.
std::optional<Geometry> dense_geometry(std::ptrdiff_t rank, const std::ptrdiff_t* shape,
                                       const std::ptrdiff_t* strides, std::ptrdiff_t item_size,
                                       std::ptrdiff_t channel_axis) noexcept;

}  // namespace onedsl
