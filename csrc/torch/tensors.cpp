#include "tensors.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <optional>

namespace onedsl::torch {
namespace {

constexpr std::size_t cache_line = 64;
constexpr std::size_t page = 4096;
constexpr std::size_t large_memory = std::size_t{4} << 20;
constexpr std::int32_t no_index = -1;  // of the device: there is one CPU

std::size_t bytes_to_next(const std::size_t multiple, const void* const address) {
  return (multiple - reinterpret_cast<std::uintptr_t>(address) % multiple) % multiple;
}

std::optional<DataType> data_type(const std::int32_t type) {
  if (type == api.f32()) return DataType::f32;
  if (type == api.bf16()) return DataType::bf16;
  if (type == api.f16()) return DataType::f16;
  return std::nullopt;
}

std::int32_t pytorch_type(const DataType type) {
  if (type == DataType::f32) return api.f32();
  return type == DataType::bf16 ? api.bf16() : api.f16();
}

OwnedTensor empty(const std::int64_t rank, const std::int64_t* const sizes,
                  const std::int64_t* const strides, const std::int32_t type) {
  Tensor* made = nullptr;
  check(api.empty(rank, sizes, strides, type, api.cpu(), no_index, &made));
  return OwnedTensor(made);
}

// Without huge pages, page faults of new memory take longer than the kernel that writes it.
void use_huge_pages(std::byte* const begin, const std::size_t bytes) {
  // A system without huge pages returns an error; ordinary pages remain.
  const std::size_t before_page = bytes_to_next(page, begin);
  static_cast<void>(madvise(begin + before_page, bytes - before_page, MADV_HUGEPAGE));
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
  use_huge_pages(begin, bytes);
  Tensor* made = nullptr;
  const Error error = api.from_blob(
      begin, like.rank, like.shape, like.strides, 0, pytorch_type(like.type), api.cpu(), no_index,
      &made, api.strided(), nullptr, 0, [](void*, void* const to_free) { std::free(to_free); },
      allocated);
  if (error != 0) std::free(allocated);
  check(error);
  return OwnedTensor(made);
}

}  // namespace

void check(const Error error) {
  if (error == 0) return;
  const char* const what = api.exception_text != nullptr ? api.exception_text() : nullptr;
  throw std::runtime_error(what != nullptr && *what != '\0' ? what
                                                            : "a function of PyTorch failed");
}

View view_of(const Tensor& tensor) {
  if (!get(api.is_defined, &tensor)) throw Unsupported("undefined tensors");
  if (get(api.device, &tensor) != api.cpu()) throw Unsupported("devices other than the CPU");
  if (get(api.layout, &tensor) != api.strided()) throw Unsupported("tensors that are not strided");
  const std::optional<DataType> type = data_type(get(api.type, &tensor));
  if (!type) throw Unsupported("dtypes other than float32, bfloat16 and float16");
  const void* data = nullptr;
  if (api.data(&tensor, &data) != 0) throw Unsupported("tensors without memory");
  View view;
  view.type = *type;
  view.data = static_cast<char*>(const_cast<void*>(data));
  view.rank = get(api.rank, &tensor);
  view.shape = get(api.sizes, &tensor);
  view.strides = get(api.strides, &tensor);
  if (!view.is_aligned()) throw Unsupported("unaligned tensors");
  return view;
}

float* f32_vector(const Tensor& tensor, const std::int64_t length) {
  if (get(api.type, &tensor) != api.f32()) {
    throw Unsupported("parameters and statistics other than float32");
  }
  const View v = view_of(tensor);
  if (v.rank != 1 || v.shape[0] != length) {
    throw Unsupported("parameters and statistics whose length is not the number of channels");
  }
  if (!v.is_vector(length)) throw Unsupported("strided parameters and statistics");
  return reinterpret_cast<float*>(v.data);
}

bool is_contiguous_or_channels_last(const View& v) {
  if (v.is_c_contiguous()) return true;
  if (v.rank != 4 && v.rank != 5) return false;
  std::array<std::int64_t, 5> shape = {};
  std::array<std::int64_t, 5> strides = {};
  std::rotate_copy(v.shape + 1, v.shape + 2, v.shape + v.rank, shape.begin() + 1);
  std::rotate_copy(v.strides + 1, v.strides + 2, v.strides + v.rank, strides.begin() + 1);
  shape[0] = v.shape[0];
  strides[0] = v.strides[0];
  View channels_last = v;
  channels_last.shape = shape.data();
  channels_last.strides = strides.data();
  return channels_last.is_c_contiguous();
}

OwnedTensor empty_vector(const std::int64_t length) { return empty_vector(length, api.f32()); }

OwnedTensor empty_vector(const std::int64_t length, const std::int32_t type) {
  const std::int64_t stride = 1;
  return empty(1, &length, &stride, type);
}

OwnedTensor empty_like(const View& dense) {
  const std::size_t bytes = dense.bytes();
  if (bytes >= large_memory) return empty_by_malloc(dense, bytes);
  return empty(dense.rank, dense.shape, dense.strides, pytorch_type(dense.type));
}

OwnedTensor undefined() {
  Tensor* made = nullptr;
  check(api.undefined(&made));
  return OwnedTensor(made);
}

}  // namespace onedsl::torch
