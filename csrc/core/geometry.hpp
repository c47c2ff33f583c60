#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "view.hpp"

namespace onedsl {

// The memory layout of a dense tensor of any rank, as a block of shape (outer, channels, inner) in
// C order: NXC memory is (N * X, C, 1) and NCX memory is (N, C, X). Each channel has statistics of
// its own. All sums run over outer and inner, so the order of the axes that are merged into them
// does not matter.
struct Geometry {
  std::int64_t outer = 0;
  std::int64_t channels = 0;
  std::int64_t inner = 0;

  constexpr std::int64_t per_channel() const noexcept { return outer * inner; }
  constexpr std::int64_t elements() const noexcept { return channels * per_channel(); }
};

constexpr std::ptrdiff_t max_rank = 64;  // NumPy's limit

// The largest tensor, as large as the address space of x86-64. No product of sizes and small
// constants overflows 64 bits below it, so sizes are checked here and nowhere else.
constexpr std::int64_t max_tensor_bytes = std::int64_t{1} << 56;

// The axes that are merged into the channels, one bit each.
using ChannelAxes = std::uint64_t;

// Return the strides of an array in C order, in the unit of item_stride. Strides that overflow are
// 0; dense_geometry rejects such arrays, unless they are empty.
std::vector<std::ptrdiff_t> c_strides(std::ptrdiff_t rank, const std::ptrdiff_t* shape,
                                      std::ptrdiff_t item_stride = 1);

// Return the Geometry of a tensor.
//
// Return nullopt if it is not dense (gaps, overlap, negative strides), if it has more than max_rank
// axes or max_tensor_bytes, or if the channel axes are not adjacent in memory in their order in the
// shape.
std::optional<Geometry> dense_geometry(const View& tensor, ChannelAxes channel_axes) noexcept;

}  // namespace onedsl
