#pragma once

#include <array>
#include <cstddef>

#include "../core/geometry.hpp"
#include "summation_order.hpp"

namespace onedsl::native {

// Return the geometry of one group: its block of memory and the loops that are summed over.
inline Geometry without_kept_loops(const Geometry& geometry) {
  Geometry group = geometry;
  group.num_loops = 0;
  for (std::size_t i = 0; i < geometry.num_loops; ++i) {
    if (!geometry.loops[i].kept) group.loops[group.num_loops++] = geometry.loops[i];
  }
  return group;
}

// Offsets of a geometry's block for all indices of its kept loops, or of its summed loops. A flat
// index numbers them, the last loop fastest.
class LoopOffsets {
 public:
  LoopOffsets(const Geometry& geometry, const bool kept) : count_(geometry.loop_iterations(kept)) {
    for (std::size_t i = 0; i < geometry.num_loops; ++i) {
      if (geometry.loops[i].kept == kept) loops_[num_loops_++] = geometry.loops[i];
    }
  }

  Index count() const { return count_; }

  // Return the offset of a flat index, in elements.
  Index offset(Index index) const {
    Index offset = 0;
    for (std::size_t i = num_loops_; i-- > 0; index /= loops_[i].count) {
      offset += index % loops_[i].count * loops_[i].stride;
    }
    return offset;
  }

 private:
  std::array<Loop, Geometry::max_loops> loops_ = {};
  std::size_t num_loops_ = 0;
  Index count_;
};

}  // namespace onedsl::native
