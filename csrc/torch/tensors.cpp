#include "tensors.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace onedsl::torch {
namespace {

constexpr std::size_t cache_line = 64;
constexpr std::size_t page = 4096;
constexpr std::size_t large_memory = std::size_t{4} << 20;
constexpr std::int32_t no_index = -1;  // of the device: there is one CPU

std::size_t bytes_to_next(const std::size_t multiple, const void* const address) {
  return (multiple - reinterpret_cast<std::uintptr_t>(address) % multiple) % multiple;
}

// By DataType.
std::array<std::int32_t, 3> pytorch_types() { return {api->f32, api->bf16, api->f16}; }

std::int32_t pytorch_type(const DataType type) {
  return pytorch_types()[static_cast<std::size_t>(type)];
}

OwnedTensor empty(const std::int64_t rank, const std::int64_t* const sizes,
                  const std::int64_t* const strides, const std::int32_t type) {
  return make(api->empty, rank, sizes, strides, type, api->cpu, no_index);
}

// Returns a tensor in memory of malloc.
//
// With glibc before 2.38, large memory of PyTorch's own costs up to a tenth of a training step:
// posix_memalign takes new memory from the system time and again, because what it freed is a little
// too short for the next tensor of the same size.
OwnedTensor empty_by_malloc(const View& like, const std::size_t bytes) {
  auto* const allocated = static_cast<std::byte*>(std::malloc(bytes + cache_line));
  if (allocated == nullptr) throw std::bad_alloc();
  std::byte* const begin = allocated + bytes_to_next(cache_line, allocated);
  // Without huge pages, page faults of new memory take longer than the kernel that writes it. A
  // system without them returns an error; ordinary pages remain.
  const std::size_t before_page = bytes_to_next(page, begin);
  static_cast<void>(madvise(begin + before_page, bytes - before_page, MADV_HUGEPAGE));
  Tensor* made = nullptr;
  const Error error = api->from_blob(
      begin, like.rank, like.shape, like.strides, 0, pytorch_type(like.type), api->cpu, no_index,
      &made, api->strided, nullptr, 0, [](void*, void* const to_free) { std::free(to_free); },
      allocated);
  if (error != 0) std::free(allocated);
  check(error);
  return OwnedTensor(made);
}

// Returns whether a tensor's storage has all of its elements. FSDP, for example, resizes the
// storage of parameters to 0.
bool has_memory(const Tensor& tensor, const View& v) {
  if (v.size() == 0) return true;
  std::int64_t elements = 1 + get(api->storage_offset, &tensor);  // up to the last one
  for (std::ptrdiff_t axis = 0; axis < v.rank; ++axis) {
    elements += (v.shape[axis] - 1) * v.strides[axis];
  }
  const auto bytes = static_cast<std::size_t>(get(api->storage_bytes, &tensor));
  return static_cast<std::size_t>(elements) <= bytes / size_of(v.type);
}

}  // namespace

void check(const Error error) {
  if (error == 0) return;
  const char* const what = api->exception_text != nullptr ? api->exception_text() : nullptr;
  throw std::runtime_error(what != nullptr && *what != '\0' ? what
                                                            : "a function of PyTorch failed");
}

View view_of(const Tensor& tensor) {
  if (!get(api->is_defined, &tensor)) throw Unsupported("undefined tensors");
  if (get(api->device, &tensor) != api->cpu) throw Unsupported("devices other than the CPU");
  if (get(api->layout, &tensor) != api->strided) throw Unsupported("tensors that are not strided");
  const std::array<std::int32_t, 3> types = pytorch_types();
  const auto* const type = std::find(types.begin(), types.end(), get(api->type, &tensor));
  if (type == types.end()) throw Unsupported("dtypes other than float32, bfloat16 and float16");
  const void* data = nullptr;
  if (api->data(&tensor, &data) != 0) throw Unsupported("tensors without memory");
  View view;
  view.type = static_cast<DataType>(type - types.begin());
  view.data = static_cast<char*>(const_cast<void*>(data));
  view.rank = get(api->rank, &tensor);
  view.shape = get(api->sizes, &tensor);
  view.strides = get(api->strides, &tensor);
  if (!has_memory(tensor, view)) throw Unsupported("tensors whose storage was made too small");
  return view;
}

View aligned(const View& v) {
  if (!v.is_aligned()) throw Unsupported("unaligned tensors");
  return v;
}

View f32_vector_view(const Tensor& tensor, const std::int64_t length) {
  if (get(api->type, &tensor) != api->f32) {
    throw Unsupported("parameters and statistics other than float32");
  }
  const View v = view_of(tensor);
  if (v.rank != 1 || v.shape[0] != length) {
    throw Unsupported("parameters and statistics whose length is not the number of channels");
  }
  if (!v.is_vector(length)) throw Unsupported("strided parameters and statistics");
  return v;
}

const float* f32_vector(const Tensor& tensor, const std::int64_t length) {
  return reinterpret_cast<const float*>(aligned(f32_vector_view(tensor, length)).data);
}

bool is_contiguous_or_channels_last(const View& v) {
  if (v.is_c_contiguous()) return true;
  if (v.rank != 4 && v.rank != 5) return false;
  // From the fastest axis of channels_last to the slowest: 1, the spatial axes, 0.
  std::ptrdiff_t expected = v.item_stride;
  for (std::ptrdiff_t i = 0; i < v.rank; ++i) {
    const std::ptrdiff_t axis = i == 0 ? 1 : i == v.rank - 1 ? 0 : v.rank - i;
    if (v.shape[axis] != 1 && v.strides[axis] != expected) return false;
    expected *= v.shape[axis];
  }
  return true;
}

OwnedTensor empty_vector(const std::int64_t length) {
  const std::int64_t stride = 1;
  return empty(1, &length, &stride, api->f32);
}

OwnedTensor empty_like(const View& dense) {
  const std::size_t bytes = dense.bytes();
  if (bytes >= large_memory) return empty_by_malloc(dense, bytes);
  return empty(dense.rank, dense.shape, dense.strides, pytorch_type(dense.type));
}

}  // namespace onedsl::torch
