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

// Return the pitch of elements at these offsets in the memory order, nullopt if they have none.
std::optional<Pitch> pitch_of_offsets(const Geometry& g, const std::vector<std::int64_t>& offsets) {
  Pitch pitch = g.dense_pitch();
  const auto at = [&](const std::int64_t n, const std::int64_t c, const std::int64_t i) {
    return offsets[static_cast<std::size_t>((n * g.channels + c) * g.inner + i)];
  };
  if (g.outer > 1) pitch.position = at(1, 0, 0);
  if (g.channels > 1) pitch.channel = at(0, 1, 0);
  for (std::int64_t n = 0; n < g.outer; ++n) {
    for (std::int64_t c = 0; c < g.channels; ++c) {
      for (std::int64_t i = 0; i < g.inner; ++i) {
        if (at(n, c, i) != n * pitch.position + c * pitch.channel + i) return std::nullopt;
      }
    }
  }
  return pitch;
}

// Views with strides of their own: the pitch, the span and the overlap of their elements.
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
  int pitched = 0;
  for (int i = 0; i < 4000; ++i) {
    auto& [layout, bytes, offsets, view] = all.emplace_back();
    layout = random_layout(random, 2000);
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
    // The offset of each element in an order of the axes.
    const auto offsets_in = [&layout = layout](const MemoryOrder& axes) {
      std::vector<std::int64_t> found;
      for (std::int64_t element = 0; element < layout.elements(); ++element) {
        std::int64_t offset = 0;
        std::int64_t rest = element;
        for (const std::uint8_t* axis = axes.end(); axis-- != axes.begin();) {
          offset += rest % layout.shape[*axis] * layout.strides[*axis];
          rest /= layout.shape[*axis];
        }
        found.push_back(offset);
      }
      return found;
    };
    const MemoryOrder channels = *memory_order(view, layout.channel_axes);
    const std::optional<Pitch> pitch = pitch_of_offsets(channels.geometry, offsets_in(channels));
    const std::optional<Pitch> found = pitch_of(view, channels);
    check(!found || (pitch && *found == *pitch), layout, " has the wrong pitch");
    check(found || !pitch || channels.geometry.inner < max_lanes, layout, " has no pitch");
    pitched += found && !is_dense_in(view, channels) ? 1 : 0;
    offsets = offsets_in(*order);
    std::sort(offsets.begin(), offsets.end());
    const Memory memory = *view.memory();
    check(memory.begin == static_cast<std::uintptr_t>(address + 4 * offsets.front()) &&
              memory.end == static_cast<std::uintptr_t>(address + 4 * offsets.back() + 4),
          layout, " has the wrong memory");
    const std::vector<std::ptrdiff_t> dense_copy = dense_strides(view, *order);
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
    check(pitch_of(cut, *order).has_value() == (order->count == 0), layout, " of cut elements");
    const std::vector<std::ptrdiff_t> huge(layout.shape.size(), std::ptrdiff_t{1} << 62);
    const View far{DataType::f32, nullptr, rank, layout.shape.data(), huge.data(), 4};
    pitch_of(far, *order);  // the products of its strides overflow
  }
  check(separate > 1000 && separate < 3900, separate, " views have separate elements");
  check(pitched > 40, pitched, " views with a pitch");
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
