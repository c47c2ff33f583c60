#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace onedsl {

// One axis, or several merged ones, outside of the block of a Geometry.
struct Loop {
  std::int64_t count = 1;
  std::int64_t stride = 0;  // in elements
  bool kept = false;        // whether each index has its own statistics; otherwise summed over
};

// The memory layout of a dense tensor of any rank, as a block of shape (outer, channels, inner) in
// C order: NXC memory is (N * X, C, 1) and NCX memory is (N, C, X). All sums run over outer and
// inner, so the order of the axes that are merged into them does not matter.
//
// If the kept axes (those with statistics of their own) are not adjacent in memory, the block
// consists of the fastest axes, and loops run over the others, slowest first. Example: a tensor
// (N, C, H, W) with statistics (N, 1, H, 1) has one loop over N and the block (C, H, W).
struct Geometry {
  static constexpr std::size_t max_loops = 6;

  std::int64_t outer = 0;
  std::int64_t channels = 0;
  std::int64_t inner = 0;
  std::array<Loop, max_loops> loops = {};
  std::size_t num_loops = 0;

  // Return the number of iterations of all kept loops, or of all summed loops.
  constexpr std::int64_t loop_iterations(const bool kept) const noexcept {
    std::int64_t count = 1;
    for (std::size_t i = 0; i < num_loops; ++i) {
      if (loops[i].kept == kept) count *= loops[i].count;
    }
    return count;
  }
  // Return the number of values of each statistic, such as mean.
  constexpr std::int64_t statistics() const noexcept { return channels * loop_iterations(true); }
  constexpr std::int64_t per_block_channel() const noexcept { return outer * inner; }
  constexpr std::int64_t per_statistic() const noexcept {
    return per_block_channel() * loop_iterations(false);
  }
  constexpr std::int64_t elements() const noexcept { return statistics() * per_statistic(); }
};

bool operator==(const Geometry& a, const Geometry& b) noexcept;

constexpr std::ptrdiff_t max_rank = 64;  // NumPy's limit

// The largest tensor, as large as the address space of x86-64. No product of sizes and small
// constants overflows 64 bits below it, so sizes are checked here and nowhere else.
constexpr std::int64_t max_tensor_bytes = std::int64_t{1} << 56;

// The axes that have statistics of their own, one bit each.
using KeptAxes = std::uint64_t;

// Write the strides of an array in C order, in the unit of item_stride. Return false if one of them
// overflows.
bool c_strides(std::ptrdiff_t rank, const std::ptrdiff_t* shape, std::ptrdiff_t item_stride,
               std::ptrdiff_t* strides) noexcept;

// Return the Geometry of a tensor. item_stride is the distance of adjacent items in the unit of the
// strides: 1 if they count items, item_size if they count bytes. item_size is in bytes.
//
// Return nullopt if the tensor is not dense (gaps, overlap, negative strides), if it has more than
// max_tensor_bytes, if the order of the kept axes in memory is not their order in the shape (the
// statistics' order), or if kept and summed axes alternate more often than max_loops allows.
std::optional<Geometry> dense_geometry(std::ptrdiff_t rank, const std::ptrdiff_t* shape,
                                       const std::ptrdiff_t* strides, std::ptrdiff_t item_stride,
                                       std::ptrdiff_t item_size, KeptAxes kept) noexcept;

}  // namespace onedsl
