#include "geometry.hpp"

#include <algorithm>
#include <array>

namespace onedsl {
namespace {

constexpr bool is_kept(const KeptAxes kept, const std::ptrdiff_t axis) {
  return (kept >> axis & 1U) != 0;
}

}  // namespace

bool operator==(const Geometry& a, const Geometry& b) noexcept {
  const auto same = [](const Loop& p, const Loop& q) {
    return p.count == q.count && p.stride == q.stride && p.kept == q.kept;
  };
  return a.outer == b.outer && a.channels == b.channels && a.inner == b.inner &&
         a.num_loops == b.num_loops &&
         std::equal(a.loops.begin(), a.loops.begin() + a.num_loops, b.loops.begin(), same);
}

bool c_strides(const std::ptrdiff_t rank, const std::ptrdiff_t* const shape,
               const std::ptrdiff_t item_stride, std::ptrdiff_t* const strides) noexcept {
  std::ptrdiff_t stride = item_stride;
  for (std::ptrdiff_t axis = rank; axis-- > 0;) {
    strides[axis] = stride;
    const std::ptrdiff_t size = std::max<std::ptrdiff_t>(shape[axis], 1);
    if (__builtin_mul_overflow(stride, size, &stride)) return false;
  }
  return true;
}

std::optional<Geometry> dense_geometry(const std::ptrdiff_t rank, const std::ptrdiff_t* const shape,
                                       const std::ptrdiff_t* const strides,
                                       const std::ptrdiff_t item_stride,
                                       const std::ptrdiff_t item_size,
                                       const KeptAxes kept) noexcept {
  // Axes of extent 1 are left out: their strides are arbitrary.
  std::array<std::ptrdiff_t, max_rank> axes;
  std::ptrdiff_t* const first = axes.data();
  std::ptrdiff_t* last = first;
  std::int64_t statistics = 1;
  std::int64_t per_statistic = 1;
  std::int64_t bytes = item_size;
  for (std::ptrdiff_t axis = 0; axis < rank; ++axis) {
    if (shape[axis] < 0) return std::nullopt;
    std::int64_t& count = is_kept(kept, axis) ? statistics : per_statistic;
    if (__builtin_mul_overflow(count, shape[axis], &count)) return std::nullopt;
    if (__builtin_mul_overflow(bytes, shape[axis], &bytes)) return std::nullopt;
    if (shape[axis] != 1) *last++ = axis;
  }
  if (bytes > max_tensor_bytes) return std::nullopt;
  if (statistics == 0 || per_statistic == 0) return Geometry{per_statistic, statistics, 1};

  const auto slower = [&](const auto a, const auto b) { return strides[a] > strides[b]; };
  if (!std::is_sorted(first, last, slower)) std::sort(first, last, slower);

  // Merge adjacent axes of the same kind (kept or summed) into runs, fastest first.
  std::array<Loop, max_rank> runs;
  std::size_t num_runs = 0;
  std::ptrdiff_t expected = item_stride;
  std::ptrdiff_t last_kept = rank;
  for (const std::ptrdiff_t* axis = last; axis != first;) {
    --axis;
    if (strides[*axis] != expected) return std::nullopt;
    const bool keep = is_kept(kept, *axis);
    if (keep) {
      if (*axis > last_kept) return std::nullopt;
      last_kept = *axis;
    }
    if (num_runs == 0 || runs[num_runs - 1].kept != keep) {
      runs[num_runs++] = Loop{1, expected / item_stride, keep};
    }
    runs[num_runs - 1].count *= shape[*axis];
    expected *= shape[*axis];
  }

  Geometry geometry;
  std::size_t next = 0;
  const auto take = [&](const bool keep) {
    return next < num_runs && runs[next].kept == keep ? runs[next++].count : std::int64_t{1};
  };
  geometry.inner = take(false);
  geometry.channels = take(true);
  geometry.outer = take(false);
  geometry.num_loops = num_runs - next;
  if (geometry.num_loops > Geometry::max_loops) return std::nullopt;
  for (std::size_t i = 0; i < geometry.num_loops; ++i) geometry.loops[i] = runs[num_runs - 1 - i];
  return geometry;
}

}  // namespace onedsl
