#include "tensors.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <vector>

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

OwnedTensor empty_vector(const std::int64_t length, const std::int32_t type) {
  const std::int64_t stride = 1;
  return empty(1, &length, &stride, type);
}

bool has_memory(const Tensor& tensor) {
  return get(api.is_defined, &tensor) && get(api.device, &tensor) == api.cpu() &&
         get(api.layout, &tensor) == api.strided();
}

// Returns the elements of a contiguous vector of `length` elements of the type, else null.
const void* vector(const Tensor& tensor, const std::int64_t length, const std::int32_t type) {
  if (!has_memory(tensor) || get(api.type, &tensor) != type || get(api.rank, &tensor) != 1 ||
      *get(api.sizes, &tensor) != length || (length != 1 && *get(api.strides, &tensor) != 1)) {
    return nullptr;
  }
  const void* data = nullptr;
  const bool is_readable = api.data(&tensor, &data) == 0;
  const std::size_t alignment = type == api.f64() ? alignof(double) : alignof(float);
  return is_readable && bytes_to_next(alignment, data) == 0 ? data : nullptr;
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

std::optional<View> view(const Tensor& tensor) {
  if (!has_memory(tensor)) return std::nullopt;
  const std::optional<DataType> type = data_type(get(api.type, &tensor));
  if (!type) return std::nullopt;
  const void* data = nullptr;
  if (api.data(&tensor, &data) != 0) return std::nullopt;
  if (reinterpret_cast<std::uintptr_t>(data) % size_of(*type) != 0) return std::nullopt;
  return View{*type, get(api.rank, &tensor), get(api.sizes, &tensor), get(api.strides, &tensor),
              data};
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

const float* f32_vector(const Tensor& tensor, const std::int64_t length) {
  return static_cast<const float*>(vector(tensor, length, api.f32()));
}

const double* f64_vector(const Tensor& tensor, const std::int64_t length) {
  return static_cast<const double*>(vector(tensor, length, api.f64()));
}

OwnedTensor empty_vector(const std::int64_t length) { return empty_vector(length, api.f32()); }

OwnedTensor empty_f64_vector(const std::int64_t length) { return empty_vector(length, api.f64()); }

OwnedTensor empty_like(const View& dense) {
  const std::size_t bytes = size_in_bytes(dense);
  if (bytes >= large_memory) return empty_by_malloc(dense, bytes);
  return empty(dense.rank, dense.sizes, dense.strides, pytorch_type(dense.type));
}

OwnedTensor empty_clonable_like(const View& dense) {
  OwnedTensor made = empty(dense.rank, dense.sizes, dense.strides, pytorch_type(dense.type));
  const std::size_t bytes = size_in_bytes(dense);
  if (bytes >= large_memory) use_huge_pages(memory_of<std::byte>(*made), bytes);
  return made;
}

OwnedTensor empty_contiguous(const View& like) {
  std::vector<std::int64_t> strides(static_cast<std::size_t>(like.rank), 1);
  for (auto i = strides.size() - 1; i-- > 0;) {
    strides[i] = strides[i + 1] * std::max<std::int64_t>(like.sizes[i + 1], 1);
  }
  return empty(like.rank, like.sizes, strides.data(), pytorch_type(like.type));
}

OwnedTensor empty_bytes() { return empty_vector(0, api.u8()); }

OwnedTensor undefined() {
  Tensor* made = nullptr;
  check(api.undefined(&made));
  return OwnedTensor(made);
}

}  // namespace onedsl::torch
