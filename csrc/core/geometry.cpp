#include "geometry.hpp"

#include <algorithm>
#include <array>

namespace onedsl {

std::vector<std::ptrdiff_t> c_strides(const std::ptrdiff_t rank, const std::ptrdiff_t* const shape,
                                      std::ptrdiff_t item_stride) {
  std::vector<std::ptrdiff_t> strides(static_cast<std::size_t>(rank));
  for (std::ptrdiff_t axis = rank; axis-- > 0;) {
    strides[static_cast<std::size_t>(axis)] = item_stride;
    const std::ptrdiff_t size = std::max<std::ptrdiff_t>(shape[axis], 1);
    if (__builtin_mul_overflow(item_stride, size, &item_stride)) break;
  }
  return strides;
}

std::optional<Geometry> dense_geometry(const View& tensor,
                                       const ChannelAxes channel_axes) noexcept {
  if (tensor.rank > max_rank) return std::nullopt;
  const auto* const shape = tensor.shape;
  const auto* const strides = tensor.strides;
  const auto is_channel = [&](const std::ptrdiff_t axis) {
    return (channel_axes >> axis & 1U) != 0;
  };
  // Axes of extent 1 are left out: their strides are arbitrary.
  std::array<std::ptrdiff_t, max_rank> axes;
  std::ptrdiff_t* const first = axes.data();
  std::ptrdiff_t* last = first;
  std::int64_t channels = 1;
  std::int64_t per_channel = 1;
  auto bytes = static_cast<std::int64_t>(size_of(tensor.type));
  for (std::ptrdiff_t axis = 0; axis < tensor.rank; ++axis) {
    if (shape[axis] < 0) return std::nullopt;
    std::int64_t& count = is_channel(axis) ? channels : per_channel;
    if (__builtin_mul_overflow(count, shape[axis], &count)) return std::nullopt;
    if (__builtin_mul_overflow(bytes, shape[axis], &bytes)) return std::nullopt;
    if (shape[axis] != 1) *last++ = axis;
  }
  if (bytes > max_tensor_bytes) return std::nullopt;
  if (channels == 0 || per_channel == 0) return Geometry{per_channel, channels, 1};

  const auto slower = [&](const auto a, const auto b) { return strides[a] > strides[b]; };
  if (!std::is_sorted(first, last, slower)) std::sort(first, last, slower);

  // From the fastest axis to the slowest: inner, channels, outer.
  Geometry geometry{1, 1, 1};
  std::ptrdiff_t expected = tensor.item_stride;
  std::ptrdiff_t last_channel = tensor.rank;
  for (const std::ptrdiff_t* axis = last; axis != first;) {
    --axis;
    if (strides[*axis] != expected) return std::nullopt;
    expected *= shape[*axis];
    if (is_channel(*axis)) {
      if (geometry.outer > 1 || *axis > last_channel) return std::nullopt;
      last_channel = *axis;
      geometry.channels *= shape[*axis];
    } else {
      (last_channel == tensor.rank ? geometry.inner : geometry.outer) *= shape[*axis];
    }
  }
  return geometry;
}

}  // namespace onedsl
