#include "geometry.hpp"

#include <algorithm>
#include <functional>

namespace onedsl {
namespace {

// Write the axes to `axes`, by the magnitudes of their strides, slowest first, and return the end.
// Axes of equal strides stay in the order of the shape. Those of size 1 are left out by default.
std::uint8_t* sort_axes(const View& tensor, std::uint8_t* const axes,
                        const bool with_ones = false) noexcept {
  std::uint8_t* end = axes;
  for (std::ptrdiff_t axis = 0; axis < tensor.rank; ++axis) {
    if (tensor.shape[axis] == 1 && !with_ones) continue;
    std::uint8_t* at = end++;
    const std::size_t stride = magnitude(tensor.strides[axis]);
    for (; at != axes && magnitude(tensor.strides[at[-1]]) < stride; --at) at[0] = at[-1];
    *at = static_cast<std::uint8_t>(axis);
  }
  return end;
}

}  // namespace

std::optional<MemoryOrder> memory_order(const View& src, const ChannelAxes channel_axes) noexcept {
  if (src.rank > max_rank) return std::nullopt;
  const auto is_channel = [&](const std::ptrdiff_t axis) {
    return (channel_axes >> axis & 1U) != 0;
  };
  std::int64_t channels = 1;
  std::int64_t per_channel = 1;
  auto bytes = static_cast<std::int64_t>(size_of(src.type));
  for (std::ptrdiff_t axis = 0; axis < src.rank; ++axis) {
    if (src.shape[axis] < 0) return std::nullopt;
    // A size of 0 counts as 1, so that the order of the sizes does not matter.
    const std::int64_t size = std::max<std::int64_t>(src.shape[axis], 1);
    if (__builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
    (is_channel(axis) ? channels : per_channel) *= src.shape[axis];
  }
  if (bytes > max_tensor_bytes) return std::nullopt;
  MemoryOrder order;
  order.geometry = {per_channel, channels, 1};
  if (channels == 0 || per_channel == 0) return order;

  order.count = sort_axes(src, order.axes.data()) - order.begin();
  // From the slowest axis to the fastest: outer, channels, inner.
  std::int64_t inner = 1;
  std::ptrdiff_t last_channel = channels > 1 ? -1 : 0;  // a single statistic's elements are inner
  bool are_in_order = true;
  for (const std::ptrdiff_t axis : order) {
    if (is_channel(axis)) {
      are_in_order = are_in_order && inner == 1 && axis > last_channel;
      last_channel = axis;
    } else if (last_channel >= 0) {
      inner *= src.shape[axis];
    }
  }
  if (!are_in_order) {
    // The fastest axis stays in the fastest group, so that its elements stay neighbors.
    const MemoryOrder sorted = order;
    const bool channels_last = is_channel(sorted.end()[-1]);
    std::uint8_t* end = order.axes.data();
    const auto add_summed = [&] {
      end = std::copy_if(sorted.begin(), sorted.end(), end, std::not_fn(is_channel));
    };
    if (channels_last) add_summed();
    for (std::ptrdiff_t axis = 0; axis < src.rank; ++axis) {
      if (is_channel(axis) && src.shape[axis] > 1) *end++ = static_cast<std::uint8_t>(axis);
    }
    if (!channels_last) add_summed();
    inner = channels_last ? 1 : per_channel;
  }
  order.geometry = {per_channel / inner, channels, inner};
  return order;
}

bool is_dense_in(const View& tensor, const MemoryOrder& order) noexcept {
  std::ptrdiff_t expected = tensor.item_stride;
  for (const std::uint8_t* axis = order.end(); axis-- != order.begin();) {
    if (tensor.strides[*axis] != expected) return false;
    expected *= tensor.shape[*axis];
  }
  return true;
}

std::vector<std::ptrdiff_t> dense_strides(const View& tensor, const MemoryOrder& order) {
  std::array<std::uint8_t, max_rank> axes;
  const std::uint8_t* const end = sort_axes(tensor, axes.data(), true);
  std::vector<std::ptrdiff_t> strides = strides_in_order(
      tensor.rank, tensor.shape, [&](const std::ptrdiff_t i) { return end[-1 - i]; });
  std::ptrdiff_t stride = 1;
  for (const std::uint8_t* axis = order.end(); axis-- != order.begin();) {
    strides[*axis] = stride;
    stride *= tensor.shape[*axis];
  }
  return strides;
}

std::optional<Pitch> pitch_of(const View& tensor, const MemoryOrder& order) noexcept {
  const Geometry& g = order.geometry;
  Pitch pitch = g.dense_pitch();
  if (is_dense_in(tensor, order)) return pitch;
  const std::uint8_t* axis = order.end();
  // Sets the stride of the next slower axes, of `size` indices together. Returns whether they have
  // one.
  const auto find_stride = [&](std::int64_t size, std::int64_t& stride) {
    if (size == 1) return true;
    std::ptrdiff_t expected = tensor.strides[axis[-1]];
    if (expected % tensor.item_stride != 0) return false;
    stride = expected / tensor.item_stride;
    while (size > 1) {
      const std::ptrdiff_t extent = tensor.shape[*--axis];
      if (tensor.strides[*axis] != expected) return false;
      if (__builtin_mul_overflow(expected, extent, &expected)) return false;
      size /= extent;
    }
    return true;
  };
  std::int64_t element = 1;
  if (!find_stride(g.inner, element) || element != 1) return std::nullopt;
  if (!find_stride(g.channels, pitch.channel)) return std::nullopt;
  if (!find_stride(g.outer, pitch.position)) return std::nullopt;
  if (g.inner >= max_lanes) return pitch;
  const Pitch dense = g.dense_pitch();
  const bool is_usable =
      dense.position % pair_elements == 0 || dense.position > max_joined_position;
  return pitch.channel == dense.channel && is_usable ? std::optional(pitch) : std::nullopt;
}

bool has_separate_elements(const View& tensor) noexcept {
  std::array<std::uint8_t, max_rank> axes;
  const std::uint8_t* axis = sort_axes(tensor, axes.data());
  auto span = static_cast<std::size_t>(tensor.item_stride);  // of the faster axes
  while (axis-- != axes.data()) {
    if (tensor.shape[*axis] == 0) return true;
    const std::size_t stride = magnitude(tensor.strides[*axis]);
    if (stride < span) return false;
    span += stride * (static_cast<std::size_t>(tensor.shape[*axis]) - 1);
  }
  return true;
}

std::optional<Geometry> dense_geometry(const View& tensor,
                                       const ChannelAxes channel_axes) noexcept {
  const std::optional<MemoryOrder> order = memory_order(tensor, channel_axes);
  if (!order) return std::nullopt;
  return is_dense_in(tensor, *order) ? std::optional(order->geometry) : std::nullopt;
}

}  // namespace onedsl
