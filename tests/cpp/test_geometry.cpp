#include <cstdint>
#include <vector>

#include "check.hpp"
#include "core/geometry.hpp"
#include "layouts.hpp"
#include "tests.hpp"

namespace onedsl::test {
namespace {

// Return the index of each element's statistic, in memory order, from a Geometry.
std::vector<std::int64_t> statistics_of(const Geometry& geometry) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < geometry.elements(); ++i) {
    all.push_back(i / geometry.inner % geometry.channels);
  }
  return all;
}

// Return whether the channel axes are adjacent in memory, in their order in the shape.
bool has_adjacent_channels(const Layout& layout) {
  std::ptrdiff_t expected = 0;
  for (std::size_t axis = layout.shape.size(); axis-- > 0;) {
    if (!layout.is_channel(axis) || layout.shape[axis] == 1) continue;
    if (expected != 0 && layout.strides[axis] != expected) return false;
    expected = layout.strides[axis] * layout.shape[axis];
  }
  return true;
}

}  // namespace

// The statistic of each element.
void test_geometry() {
  Random random(1);
  int accepted = 0;
  int rejected = 0;
  for (int i = 0; i < 4000; ++i) {
    const Layout layout = random_layout(random, 2000);
    const std::optional<Geometry> geometry = layout.geometry();
    check(geometry.has_value() == has_adjacent_channels(layout), layout);
    ++(geometry ? accepted : rejected);
    if (!geometry) continue;
    check(statistics_of(*geometry) == layout.statistics(), layout, " has the wrong geometry ",
          *geometry);
  }
  check(accepted > 1000 && rejected > 200, accepted, " layouts, ", rejected, " rejected");
}

}  // namespace onedsl::test
