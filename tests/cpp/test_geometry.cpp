#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <optional>
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

// Views with strides of their own: the layout, the span and the overlap of their elements.
void test_strided_views() {
  Random random(8);
  struct Strided {
    Layout layout;
    std::vector<std::ptrdiff_t> bytes;  // the strides, as NumPy's
    std::vector<std::int64_t> offsets;
    View view;
  };
  std::vector<Strided> all;
  int separate = 0;
  int apart = 0;
  for (int i = 0; i < 4000; ++i) {
    auto& [layout, bytes, offsets, view] = all.emplace_back();
    layout = random_layout(random, 2000);
    layout.channel_axes = 0;
    layout.strides = random_strides(random, layout.shape, random.chance(2));
    const auto rank = static_cast<std::ptrdiff_t>(layout.shape.size());
    bytes = layout.strides;
    for (std::ptrdiff_t& stride : bytes) stride *= 4;
    constexpr std::int64_t address = std::int64_t{1} << 40;
    view = {DataType::f32, reinterpret_cast<char*>(address),
            rank,          layout.shape.data(),
            bytes.data(),  4};
    const std::optional<MemoryOrder> order = memory_order(view, 0);
    check(order.has_value(), layout, " has no order");
    for (std::ptrdiff_t k = 1; k < order->count; ++k) {
      const auto a = static_cast<std::size_t>(order->axes[static_cast<std::size_t>(k - 1)]);
      const auto b = static_cast<std::size_t>(order->axes[static_cast<std::size_t>(k)]);
      const std::ptrdiff_t difference = std::abs(bytes[a]) - std::abs(bytes[b]);
      check(difference > 0 || (difference == 0 && a < b), layout, " is out of order");
    }
    // The offset of each element in the memory order, by its index and by the layout.
    const onedsl::Layout merged = *layout_of(view, *order);
    const auto offset_in = [](std::int64_t element, const auto& axes) {
      std::int64_t offset = 0;
      for (auto axis = axes.rbegin(); axis != axes.rend(); element /= axis->size, ++axis) {
        offset += element % axis->size * axis->stride;
      }
      return offset;
    };
    onedsl::Layout axes;
    for (const std::size_t axis : *order)
      axes.push_back({layout.shape[axis], layout.strides[axis]});
    for (std::int64_t element = 0; element < layout.elements(); ++element) {
      offsets.push_back(offset_in(element, axes));
      const std::int64_t found = merged.empty() ? element : offset_in(element, merged);
      check(found == offsets.back(), layout, " has the wrong layout");
    }
    std::sort(offsets.begin(), offsets.end());
    const Memory memory = *view.memory();
    check(memory.begin == static_cast<std::uintptr_t>(address + 4 * offsets.front()) &&
              memory.end == static_cast<std::uintptr_t>(address + 4 * offsets.back() + 4),
          layout, " has the wrong memory");
    const std::vector<std::ptrdiff_t> dense_copy = dense_strides(view);
    const View copy{DataType::f32, nullptr, rank, layout.shape.data(), dense_copy.data()};
    check(is_dense_in(copy, *order), layout, " has another order than its dense copy");
    // This view or another one further on in memory.
    const Strided& other =
        random.chance(2) ? all.back() : all[static_cast<std::size_t>(random.between(0, i))];
    const std::int64_t distance = random.between(1, 256);  // in bytes
    View there = other.view;
    there.data += distance;
    if (random.chance(2)) there.type = DataType::bf16;
    const auto size = static_cast<std::int64_t>(size_of(there.type));
    std::vector<std::int64_t> common;
    std::vector<std::int64_t> shifted;  // the elements of `view` that it meets
    for (const std::int64_t offset : other.offsets) {
      for (const std::int64_t at : {distance, distance + size - 1})
        shifted.push_back(offset + at / 4);
    }
    std::sort(shifted.begin(), shifted.end());
    std::set_intersection(offsets.begin(), offsets.end(), shifted.begin(), shifted.end(),
                          std::back_inserter(common));
    const bool may_overlap = view.overlaps(there);
    check(may_overlap || common.empty(), layout, " overlaps ", other.layout, ": ", common.size(),
          " elements");
    apart += !may_overlap && view.memory()->meets(*there.memory()) ? 1 : 0;
    const bool distinct = std::adjacent_find(offsets.begin(), offsets.end()) == offsets.end();
    check(distinct || !has_separate_elements(view), layout, " overlaps itself");
    separate += has_separate_elements(view) ? 1 : 0;
    const std::vector<std::ptrdiff_t> odd(layout.shape.size(), 5);
    const View cut{DataType::f32, nullptr, rank, layout.shape.data(), odd.data(), 4};
    check(layout_of(cut, *order).has_value() == (order->count == 0), layout, " of cut elements");
    const std::vector<std::ptrdiff_t> huge(layout.shape.size(), std::ptrdiff_t{1} << 62);
    const View far{DataType::f32, nullptr, rank, layout.shape.data(), huge.data(), 4};
    check(layout_of(far, *order).has_value(), layout, " of strides whose products overflow");
  }
  check(separate > 1000 && separate < 3900, separate, " views have separate elements");
  check(apart > 100, apart, " pairs of views are interleaved");
}

}  // namespace

// The statistic of each element.
void test_geometry() {
  test_strided_views();
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
