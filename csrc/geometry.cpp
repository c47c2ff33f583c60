#include "geometry.hpp"

#include <algorithm>
#include <array>

namespace onedsl {

std::optional<Geometry> dense_geometry(const std::ptrdiff_t rank, const std::ptrdiff_t* const shape,
                                       const std::ptrdiff_t* const strides,
                                       const std::ptrdiff_t item_size,
                                       const std::ptrdiff_t channel_axis) noexcept {
  // Axes of extent 1 have no say: their stride is never walked.
  std::array<std::ptrdiff_t, max_rank> axes;
  std::ptrdiff_t* const first = axes.data();
  std::ptrdiff_t* last = first;
  std::int64_t per_channel = 1;
  std::int64_t bytes = item_size;
  bool countable = true;
  for (std::ptrdiff_t axis = 0; axis < rank; ++axis) {
    if (shape[axis] < 0) return std::nullopt;
    if (axis != channel_axis) per_channel *= shape[axis];
    if (shape[axis] != 1) *last++ = axis;
    countable = countable && !__builtin_mul_overflow(bytes, shape[axis], &bytes);
  }
  if (!countable) return std::nullopt;
  const std::int64_t channels = shape[channel_axis];
  if (per_channel == 0 || channels == 0) return Geometry{per_channel, channels, 1};

  const auto slower = [&](const auto a, const auto b) { return strides[a] > strides[b]; };
  if (!std::is_sorted(first, last, slower)) std::sort(first, last, slower);

  std::int64_t inner = 1;
  std::ptrdiff_t expected = item_size;
  bool inside_channel = true;
  for (std::ptrdiff_t* axis = last; axis != first;) {
    --axis;
    if (strides[*axis] != expected) return std::nullopt;
    expected *= shape[*axis];
    if (*axis == channel_axis) {
      inside_channel = false;
    } else if (inside_channel) {
      inner *= shape[*axis];
    }
  }
  // A single channel leaves no trace in the order of the axes: one plane of everything.
  if (channels == 1) inner = per_channel;
  return Geometry{per_channel / inner, channels, inner};
}

}  // namespace onedsl
