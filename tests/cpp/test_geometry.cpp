#include <cstdint>
#include <limits>
#include <vector>

#include "check.hpp"
#include "core/geometry.hpp"
#include "layouts.hpp"
#include "tests.hpp"

namespace onedsl::test {
namespace {

// Return the index of each element's statistic, in memory order, from a Geometry.
std::vector<std::int64_t> statistics_of(const Geometry& geometry) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(geometry.elements()), -1);
  std::vector<std::int64_t> index(geometry.num_loops, 0);
  for (bool more = true; more;) {
    std::int64_t offset = 0;
    std::int64_t group = 0;
    for (std::size_t i = 0; i < geometry.num_loops; ++i) {
      offset += index[i] * geometry.loops[i].stride;
      if (geometry.loops[i].kept) group = group * geometry.loops[i].count + index[i];
    }
    for (std::int64_t o = 0; o < geometry.outer; ++o) {
      for (std::int64_t c = 0; c < geometry.channels; ++c) {
        for (std::int64_t i = 0; i < geometry.inner; ++i) {
          const auto element = offset + (o * geometry.channels + c) * geometry.inner + i;
          all.at(static_cast<std::size_t>(element)) = group * geometry.channels + c;
        }
      }
    }
    more = false;
    for (std::size_t i = geometry.num_loops; i-- > 0 && !more;) {
      more = ++index[i] < geometry.loops[i].count;
      if (!more) index[i] = 0;
    }
  }
  return all;
}

// Return whether the kept axes have the same order in memory as in the shape.
bool kept_in_order(const Layout& layout) {
  std::ptrdiff_t last = std::numeric_limits<std::ptrdiff_t>::max();
  for (std::size_t axis = 0; axis < layout.shape.size(); ++axis) {
    if (!layout.is_kept(axis) || layout.shape[axis] == 1) continue;
    if (layout.strides[axis] > last) return false;
    last = layout.strides[axis];
  }
  return true;
}

}  // namespace

// The statistic of each element.
void test_geometry() {
  Random random(1);
  int seen = 0;
  int with_loops = 0;
  for (int i = 0; i < 4000; ++i) {
    const Layout layout = random_layout(random, 2000);
    const std::optional<Geometry> geometry = layout.geometry();
    check(geometry.has_value() == kept_in_order(layout), layout);
    if (!geometry) continue;
    check(statistics_of(*geometry) == layout.statistics(), layout, " has the wrong geometry ",
          *geometry);
    ++seen;
    with_loops += geometry->num_loops > 0 ? 1 : 0;
  }
  check(seen > 2000 && with_loops > 200, seen, " layouts, ", with_loops, " with loops");
}

}  // namespace onedsl::test
