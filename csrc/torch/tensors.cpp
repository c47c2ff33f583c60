#include "tensors.hpp"

#include <cstdlib>

#include "../core/large_memory.hpp"

namespace onedsl::torch {
namespace {

constexpr std::int32_t no_index = -1;  // the CPU has none

std::optional<DataType> data_type(const std::int32_t type) {
  if (type == api().f32()) return DataType::f32;
  if (type == api().bf16()) return DataType::bf16;
  if (type == api().f16()) return DataType::f16;
  return std::nullopt;
}

// Whether the axes, slowest first, have these places in memory, without gaps.
template <class Axis>
bool lies(const View& v, const Axis& axis) {
  std::int64_t stride = 1;
  for (std::int64_t i = v.rank; i-- > 0;) {
    const std::int64_t a = axis(i);
    if (v.sizes[a] != 1 && v.strides[a] != stride) return false;
    stride *= v.sizes[a];
  }
  return true;
}

}  // namespace

std::optional<View> view(abi::Tensor* const of) {
  if (!get(api().is_defined, of) || get(api().device, of) != api().cpu() ||
      get(api().layout, of) != api().strided()) {
    return std::nullopt;
  }
  const std::optional<DataType> type = data_type(get(api().type, of));
  if (!type) return std::nullopt;
  const void* data = nullptr;
  if (api().data(of, &data) != 0) return std::nullopt;  // one of those that have no memory
  if (reinterpret_cast<std::uintptr_t>(data) % size_of(*type) != 0) return std::nullopt;
  return View{of, *type, get(api().rank, of), get(api().sizes, of), get(api().strides, of), data};
}

bool is_laid_out(const View& v) {
  if (lies(v, [](const std::int64_t i) { return i; })) return true;
  const auto channels_last = [&](const std::int64_t i) {
    if (i == 0) return i;
    return i == v.rank - 1 ? std::int64_t{1} : i + 1;
  };
  return (v.rank == 4 || v.rank == 5) && lies(v, channels_last);
}

bool same_layout(const View& a, const View& b) {
  if (a.type != b.type || a.rank != b.rank) return false;
  for (std::int64_t i = 0; i < a.rank; ++i) {
    if (a.sizes[i] != b.sizes[i] || (a.sizes[i] != 1 && a.strides[i] != b.strides[i])) return false;
  }
  return true;
}

const float* channels_of(abi::Tensor* const vector, const std::int64_t channels) {
  const std::optional<View> v = view(vector);
  if (!v || v->type != DataType::f32 || v->rank != 1 || v->sizes[0] != channels) return nullptr;
  return channels == 1 || v->strides[0] == 1 ? static_cast<const float*>(v->data) : nullptr;
}

Owned empty_vector(const std::int64_t length) {
  abi::Tensor* made = nullptr;
  const std::int64_t stride = 1;
  check(api().empty(1, &length, &stride, api().f32(), api().cpu(), no_index, &made));
  return Owned(made);
}

Owned empty_like(const View& dense, const std::int64_t elements) {
  abi::Tensor* made = nullptr;
  const std::int32_t type = get(api().type, dense.handle);
  const std::size_t bytes = static_cast<std::size_t>(elements) * size_of(dense.type);
  if (bytes < large_memory) {
    check(api().empty(dense.rank, dense.sizes, dense.strides, type, api().cpu(), no_index, &made));
    return Owned(made);
  }
  const LargeMemory memory = allocate_large(bytes);
  const auto give_back = [](void*, void* const to_free) { std::free(to_free); };
  check(api().from_blob(memory.begin, dense.rank, dense.sizes, dense.strides, 0, type, api().cpu(),
                        no_index, &made, api().strided(), nullptr, 0, give_back, memory.to_free));
  return Owned(made);
}

Owned undefined() {
  abi::Tensor* made = nullptr;
  check(api().undefined(&made));
  return Owned(made);
}

Owned another(abi::Tensor* const reference) {
  abi::Tensor* made = nullptr;
  check(api().another(reference, &made));
  return Owned(made);
}

}  // namespace onedsl::torch
