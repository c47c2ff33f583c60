#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <ostream>
#include <vector>

#include "check.hpp"
#include "core/geometry.hpp"

namespace onedsl {

inline std::ostream& operator<<(std::ostream& out, const Geometry& g) {
  return out << "[" << g.outer << ", " << g.channels << ", " << g.inner << "]";
}

}  // namespace onedsl

namespace onedsl::test {

// The shape and strides of a dense tensor, and the axes that are merged into its channels.
struct Layout {
  std::vector<std::ptrdiff_t> shape;
  std::vector<std::ptrdiff_t> strides;  // in elements
  ChannelAxes channel_axes = 0;

  bool is_channel(const std::size_t axis) const { return (channel_axes >> axis & 1U) != 0; }

  std::optional<Geometry> geometry() const {
    const auto rank = static_cast<std::ptrdiff_t>(shape.size());
    return dense_geometry({DataType::f32, nullptr, rank, shape.data(), strides.data()},
                          channel_axes);
  }

  std::int64_t elements() const {
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  }

  // Return the index of each element's statistic, in memory order, from shape and strides only.
  std::vector<std::int64_t> statistics() const {
    std::vector<std::int64_t> all(static_cast<std::size_t>(elements()), -1);
    std::vector<std::ptrdiff_t> index(shape.size(), 0);
    for (std::size_t i = 0; i < all.size(); ++i) {
      std::int64_t offset = 0;
      std::int64_t statistic = 0;
      for (std::size_t axis = 0; axis < shape.size(); ++axis) {
        offset += index[axis] * strides[axis];
        if (is_channel(axis)) statistic = statistic * shape[axis] + index[axis];
      }
      all[static_cast<std::size_t>(offset)] = statistic;
      for (std::size_t axis = shape.size(); axis-- > 0;) {
        if (++index[axis] < shape[axis]) break;
        index[axis] = 0;
      }
    }
    return all;
  }
};

inline std::ostream& operator<<(std::ostream& out, const Layout& layout) {
  for (std::size_t axis = 0; axis < layout.shape.size(); ++axis) {
    out << (axis == 0 ? "(" : ", ") << layout.shape[axis] << "/" << layout.strides[axis]
        << (layout.is_channel(axis) ? " channels" : "");
  }
  return out << ")";
}

// Set dense strides for which the axes have the given order in memory, slowest first.
inline void set_strides(Layout& layout, const std::vector<std::size_t>& order) {
  layout.strides.assign(layout.shape.size(), 0);
  std::ptrdiff_t stride = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    layout.strides[order[i]] = stride;
    stride *= layout.shape[order[i]];
  }
}

// Return a layout with random channel axes and a random order of the axes in memory.
inline Layout random_layout(Random& random, const std::int64_t max_elements) {
  Layout layout;
  const auto rank = static_cast<std::size_t>(random.between(1, 8));
  std::int64_t remaining = max_elements;
  for (std::size_t axis = 0; axis < rank; ++axis) {
    layout.shape.push_back(
        random.of_any_size(random.chance(2) ? remaining : std::min<std::int64_t>(remaining, 4)));
    remaining /= layout.shape.back();
    if (random.chance(2)) layout.channel_axes |= ChannelAxes{1} << axis;
  }
  std::vector<std::size_t> order(rank);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t i = rank; random.chance(2) && i-- > 1;) {
    std::swap(order[i], order[static_cast<std::size_t>(random.between(0, std::int64_t(i)))]);
  }
  set_strides(layout, order);
  return layout;
}

// Return random strides of axes, slowest first: any order in memory, gaps, and negative ones.
// Inputs may also have strides of 0.
inline std::vector<std::ptrdiff_t> random_strides(Random& random,
                                                  const std::vector<std::ptrdiff_t>& sizes,
                                                  const bool input) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t i = order.size(); random.chance(2) && i-- > 1;) {
    std::swap(order[i], order[static_cast<std::size_t>(random.between(0, std::int64_t(i)))]);
  }
  std::vector<std::ptrdiff_t> strides(sizes.size());
  std::ptrdiff_t stride = random.chance(6) ? random.between(1, 3) : 1;
  const bool odd = random.chance(4);
  for (std::size_t i = order.size(); i-- > 0;) {
    const bool repeated = input && odd && random.chance(4);
    strides[order[i]] = repeated ? 0 : odd && random.chance(3) ? -stride : stride;
    if (!repeated) stride *= sizes[order[i]];
    if (random.chance(5)) stride += random.between(1, 40);
  }
  return strides;
}

// Return the layout of an NXC or NCX tensor, viewed as (outer, channels, inner).
inline Layout nxc_or_ncx_layout(const std::int64_t outer, const std::int64_t channels,
                                const std::int64_t inner) {
  Layout layout;
  layout.shape = {outer, channels, inner};
  layout.channel_axes = 0b010;
  set_strides(layout, {0, 1, 2});
  return layout;
}

// Return a random layout of an NXC or NCX tensor.
inline Layout random_nxc_or_ncx(Random& random, const std::int64_t max_elements) {
  // Vectors, rows and blocks end at multiples of these numbers of channels.
  constexpr std::int64_t boundaries[] = {8, 16, 32, 64, 128, 256, 512, 1024, 2048};
  const bool nxc = random.chance(2);
  std::int64_t channels = random.of_any_size(max_elements);
  if (random.chance(2)) {
    channels = boundaries[random.between(0, 8)] * random.between(1, 3) + random.between(0, 1);
  }
  channels = std::min(channels, max_elements);
  const std::int64_t inner = nxc ? 1 : random.of_any_size(max_elements / channels);
  const std::int64_t outer = random.of_any_size(max_elements / channels / inner);
  return nxc_or_ncx_layout(outer, channels, inner);
}

}  // namespace onedsl::test
