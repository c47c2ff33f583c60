#include "tensors.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <stdexcept>

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

// Returns why the memory of a tensor cannot be read, or null.
Reason reason_without_memory(const Tensor& tensor) {
  if (!get(api.is_defined, &tensor)) return "undefined tensors";
  if (get(api.device, &tensor) != api.cpu()) return "devices other than the CPU";
  if (get(api.layout, &tensor) != api.strided()) return "tensors that are not strided";
  return nullptr;
}

bool is_aligned(const void* const data, const std::size_t size) {
  return bytes_to_next(size, data) == 0;
}

// Whether the elements are contiguous in memory when `axis(0)` is the slowest axis, then `axis(1)`.
template <class Axis>
bool is_contiguous(const View& v, const Axis& axis) {
  std::int64_t stride = 1;
  for (std::int64_t i = v.rank; i-- > 0;) {
    const std::int64_t a = axis(i);
    if (v.sizes[a] != 1 && v.strides[a] != stride) return false;
    stride *= v.sizes[a];
  }
  return true;
}

std::size_t size_in_bytes(const View& dense) {
  std::size_t bytes = size_of(dense.type);
  for (std::int64_t i = 0; i < dense.rank; ++i) bytes *= static_cast<std::size_t>(dense.sizes[i]);
  return bytes;
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
      begin, like.rank, like.sizes, like.strides, 0, pytorch_type(like.type), api.cpu(), no_index,
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

Reason read(const Tensor& tensor, View& view) {
  if (const Reason reason = reason_without_memory(tensor)) return reason;
  const std::optional<DataType> type = data_type(get(api.type, &tensor));
  if (!type) return "dtypes other than float32, bfloat16 and float16";
  const void* data = nullptr;
  if (api.data(&tensor, &data) != 0) return "tensors without memory";
  if (!is_aligned(data, size_of(*type))) return "unaligned tensors";
  view = {*type, get(api.rank, &tensor), get(api.sizes, &tensor), get(api.strides, &tensor), data};
  return nullptr;
}

Reason read_f32_vector(const Tensor& tensor, const std::int64_t length, float*& data) {
  if (const Reason reason = reason_without_memory(tensor)) return reason;
  if (get(api.type, &tensor) != api.f32()) return "parameters and statistics other than float32";
  if (get(api.rank, &tensor) != 1 || *get(api.sizes, &tensor) != length) {
    return "parameters and statistics whose length is not the number of channels";
  }
  if (length != 1 && *get(api.strides, &tensor) != 1) return "strided parameters and statistics";
  const void* elements = nullptr;
  if (api.data(&tensor, &elements) != 0) return "tensors without memory";
  if (!is_aligned(elements, alignof(float))) return "unaligned tensors";
  data = static_cast<float*>(const_cast<void*>(elements));
  return nullptr;
}

bool is_contiguous_or_channels_last(const View& v) {
  if (is_contiguous(v, [](const std::int64_t i) { return i; })) return true;
  const auto channels_last = [&](const std::int64_t i) {
    if (i == 0) return i;
    return i == v.rank - 1 ? std::int64_t{1} : i + 1;
  };
  return (v.rank == 4 || v.rank == 5) && is_contiguous(v, channels_last);
}

bool same_shape_and_type(const View& a, const View& b) {
  return a.type == b.type && a.rank == b.rank && std::equal(a.sizes, a.sizes + a.rank, b.sizes);
}

bool same_strides(const View& a, const View& b) {
  for (std::int64_t i = 0; i < a.rank; ++i) {
    if (a.sizes[i] != 1 && a.strides[i] != b.strides[i]) return false;
  }
  return true;
}

OwnedTensor empty_vector(const std::int64_t length) { return empty_vector(length, api.f32()); }

OwnedTensor empty_vector(const std::int64_t length, const std::int32_t type) {
  const std::int64_t stride = 1;
  return empty(1, &length, &stride, type);
}

OwnedTensor empty_like(const View& dense) {
  const std::size_t bytes = size_in_bytes(dense);
  if (bytes >= large_memory) return empty_by_malloc(dense, bytes);
  return empty(dense.rank, dense.sizes, dense.strides, pytorch_type(dense.type));
}

OwnedTensor undefined() {
  Tensor* made = nullptr;
  check(api.undefined(&made));
  return OwnedTensor(made);
}

}  // namespace onedsl::torch
