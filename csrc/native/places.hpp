#pragma once

#include <array>
#include <cstddef>

#include "../core/geometry.hpp"
#include "summation_order.hpp"

namespace onedsl::native {

// One block at all the places that it is summed over: what the kept loops repeat.
inline Geometry without_kept_loops(const Geometry& geometry) {
  Geometry group = geometry;
  group.num_loops = 0;
  for (std::size_t i = 0; i < geometry.num_loops; ++i) {
    if (!geometry.loops[i].kept) group.loops[group.num_loops++] = geometry.loops[i];
  }
  return group;
}

// Where a geometry's block lies: the places that its loops of one kind lead to.
class Places {
 public:
  Places(const Geometry& geometry, const bool kept) : count_(geometry.times(kept)) {
    for (std::size_t i = 0; i < geometry.num_loops; ++i) {
      if (geometry.loops[i].kept == kept) loops_[num_loops_++] = geometry.loops[i];
    }
  }

  Index count() const { return count_; }

  // In elements, from the first place.
  Index offset(Index place) const {
    Index offset = 0;
    for (std::size_t i = num_loops_; i-- > 0; place /= loops_[i].count) {
      offset += place % loops_[i].count * loops_[i].stride;
    }
    return offset;
  }

 private:
  std::array<Loop, Geometry::max_loops> loops_ = {};
  std::size_t num_loops_ = 0;
  Index count_;
};

}  // namespace onedsl::native
