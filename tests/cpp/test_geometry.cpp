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

void test_statistic_of_each_element() {
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

void test_not_dense() {
  const auto check_rejected = [](const char* const reason, const std::vector<std::ptrdiff_t>& shape,
                                 const std::vector<std::ptrdiff_t>& strides) {
    Layout layout;
    layout.shape = shape;
    layout.strides = strides;
    layout.kept = 0b10;
    check(!layout.geometry(), "accepted: ", reason);
  };
  check_rejected("a gap", {4, 3}, {4, 1});
  check_rejected("an overlap", {4, 3}, {2, 1});
  check_rejected("a broadcast axis", {4, 3}, {0, 1});
  check_rejected("a negative stride", {4, 3}, {-3, 1});
  check_rejected("a gap between all elements", {4, 3}, {6, 2});
  check_rejected("a negative size", {-4, 3}, {3, 1});
  constexpr std::ptrdiff_t huge = std::ptrdiff_t{1} << 40;
  check_rejected("a size in bytes that overflows 64 bits", {huge, huge}, {huge, 1});
  constexpr std::ptrdiff_t most = max_tensor_bytes / 4;
  check_rejected("more than max_tensor_bytes", {1, most + 1}, {most + 1, 1});
  check(block_layout(1, most, 1).geometry().has_value(), "the largest tensor is rejected");

  Layout single = block_layout(4, 3, 1);
  single.strides[2] = 12345;
  check(single.geometry().has_value(), "the stride of an axis of size 1 must be ignored");
}

void test_empty() {
  const std::optional<Geometry> geometry = block_layout(0, 3, 5).geometry();
  check(geometry && geometry->elements() == 0 && geometry->statistics() == 3, "empty tensor");
}

}  // namespace

void test_geometry() {
  test_statistic_of_each_element();
  test_not_dense();
  test_empty();
}

}  // namespace onedsl::test
