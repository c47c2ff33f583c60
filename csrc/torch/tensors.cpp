#include "tensors.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <new>
#include <stdexcept>
#include <utility>

#include "../core/geometry.hpp"

namespace onedsl::torch {
namespace {

constexpr std::int32_t no_index = -1;  // of the device: there is one CPU

// By DataType.
std::array<std::int32_t, 3> pytorch_types() { return {api->f32, api->bf16, api->f16}; }

std::int32_t pytorch_type(const DataType type) {
  return pytorch_types()[static_cast<std::size_t>(type)];
}

OwnedTensor empty(const std::int64_t rank, const std::int64_t* const sizes,
                  const std::int64_t* const strides, const std::int32_t type) {
  Tensor* made = nullptr;
  const Error error = api->empty(rank, sizes, strides, type, api->cpu, no_index, &made);
  // PyTorch 2.11 does not say why. Nothing but memory can be missing.
  if (error != 0 && api->exception_text == nullptr) throw std::bad_alloc();
  throw_if(error);
  return OwnedTensor(made);
}

bool is_strided_on_cpu(const Tensor& tensor) {
  return get(api->device, &tensor) == api->cpu && get(api->layout, &tensor) == api->strided;
}

}  // namespace

void throw_if(const Error error) {
  if (error == 0) return;
  const char* const what = api->exception_text != nullptr ? api->exception_text() : nullptr;
  throw std::runtime_error(what != nullptr && *what != '\0' ? what
                                                            : "a function of PyTorch failed");
}

std::optional<View> view_of(const Tensor& tensor) {
  if (!is_strided_on_cpu(tensor)) return std::nullopt;
  const std::array<std::int32_t, 3> types = pytorch_types();
  const auto* const type = std::find(types.begin(), types.end(), get(api->type, &tensor));
  View view;
  view.type = static_cast<DataType>(type - types.begin());  // `other` is the one after these
  view.rank = get(api->rank, &tensor);
  view.shape = get(api->sizes, &tensor);
  view.strides = get(api->strides, &tensor);
  view.writeable = true;
  // Some tensors have less memory than elements: FSDP resizes the storage of parameters to 0.
  view.bytes_from_data = 0;
  const void* data = nullptr;
  if (api->data(&tensor, &data) == 0) {
    const auto bytes = static_cast<std::size_t>(get(api->storage_bytes, &tensor));
    const auto offset = static_cast<std::size_t>(get(api->storage_offset, &tensor));
    view.data = static_cast<char*>(const_cast<void*>(data));
    view.bytes_from_data = bytes - std::min(bytes, offset * size_of(view.type));
  }
  return view;
}

namespace {

// Returns the i-th fastest axis of channels_last: 1, the spatial axes, 0.
std::ptrdiff_t channels_last_axis(const std::ptrdiff_t rank, const std::ptrdiff_t i) {
  if (i == 0) return 1;
  return i == rank - 1 ? 0 : rank - i;
}

// Strides of axes of size 1 are arbitrary.
bool is_channels_last(const View& v) {
  if (v.rank != 4 && v.rank != 5) return false;
  std::ptrdiff_t expected = 1;
  for (std::ptrdiff_t i = 0; i < v.rank; ++i) {
    const std::ptrdiff_t axis = channels_last_axis(v.rank, i);
    if (v.shape[axis] != 1 && v.strides[axis] != expected) return false;
    expected *= v.shape[axis];
  }
  return true;
}

// As Tensor::suggest_memory_format() does: the strides grow in this order, each by at least the
// size of the axis before it.
bool suggests_channels_last(const View& v) {
  if ((v.rank != 4 && v.rank != 5) || v.strides[1] == 0) return false;
  std::ptrdiff_t least = 0;
  for (std::ptrdiff_t i = 0; i < v.rank; ++i) {
    const std::ptrdiff_t axis = channels_last_axis(v.rank, i);
    if (v.shape[axis] == 0 || v.strides[axis] < least) return false;
    if (axis == 0 && least == v.strides[1]) return false;  // all other sizes are 1
    least = v.strides[axis] * v.shape[axis];
  }
  return true;
}

// In one of PyTorch's memory formats.
bool is_contiguous(const View& v) { return v.is_c_contiguous() || is_channels_last(v); }

}  // namespace

std::vector<std::ptrdiff_t> pytorch_strides(const View& src, const View* const diff_dst) {
  const bool suggested = suggests_channels_last(src);
  const bool are_contiguous =
      is_contiguous(src) &&
      (diff_dst == nullptr ||
       (is_contiguous(*diff_dst) && suggests_channels_last(*diff_dst) == suggested));
  if (are_contiguous ? src.is_c_contiguous() : !suggested) return c_strides(src.rank, src.shape);
  return strides_in_order(src.rank, src.shape,
                          [&](const std::ptrdiff_t i) { return channels_last_axis(src.rank, i); });
}

std::vector<std::ptrdiff_t> empty_like_strides(const View& src, const View*) {
  if (dense_geometry(src, {})) return {src.strides, src.strides + src.rank};
  // Fastest first. An axis moves before slower ones, past those that stride 0 makes ambiguous.
  std::vector<std::ptrdiff_t> axes;
  for (std::ptrdiff_t axis = src.rank; axis-- > 0;) {
    axes.push_back(axis);
    for (std::size_t to = axes.size() - 1, i = to; i-- > 0;) {
      const std::ptrdiff_t before = src.strides[axes[i]];
      const std::ptrdiff_t own = src.strides[axes[to]];
      if (before == 0 || own == 0) continue;
      if (before < own) break;
      if (before == own && src.shape[axes[i]] <= src.shape[axes[to]]) continue;
      std::swap(axes[i], axes[to]);
      to = i;
    }
  }
  return strides_in_order(src.rank, src.shape, [&](const std::ptrdiff_t i) {
    return axes[static_cast<std::size_t>(i)];
  });
}

OwnedTensor empty_vector(const std::int64_t length) { return empty_vector(length, api->f32); }

OwnedTensor empty_vector(const std::int64_t length, const std::int32_t type) {
  const std::int64_t stride = 1;
  return empty(1, &length, &stride, type);
}

OwnedTensor empty_like(const View& like) {
  return empty(like.rank, like.shape, like.strides, pytorch_type(like.type));
}

}  // namespace onedsl::torch
