#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>

#include "../core/types.hpp"
#include "stable_abi.hpp"

// PyTorch's tensors, as the kernels take and make them.
namespace onedsl::torch {

// Where there are kernels there is the interface.
inline const abi::Functions& api() { return *abi::functions(); }

inline void check(const abi::Error error) {
  if (error != 0) throw std::runtime_error("onedsl: a function of PyTorch's has failed");
}

template <class T, class Argument>
T get(abi::Error (*const function)(Argument*, T*), Argument* const of) {
  T value{};
  check(function(of, &value));
  return value;
}

struct DeleteTensor {
  void operator()(abi::Tensor* const tensor) const noexcept { api().delete_tensor(tensor); }
};
using Owned = std::unique_ptr<abi::Tensor, DeleteTensor>;

template <class T = float>
T* memory_of(abi::Tensor* const tensor) {
  return static_cast<T*>(get(api().mutable_data, tensor));
}

// A tensor in the CPU's memory, with a type that onedsl has. PyTorch keeps what it points to.
struct View {
  abi::Tensor* handle;
  DataType type;
  std::int64_t rank;
  const std::int64_t* sizes;
  const std::int64_t* strides;
  const void* data;
};

// Nothing if it is another tensor, or none.
std::optional<View> view(abi::Tensor* of);

// Contiguous or channels_last: PyTorch, too, would give a result that lies in memory as this does.
bool is_laid_out(const View& v);
bool same_layout(const View& a, const View& b);

// The values of an f32 vector with one for each channel; null if it is something else.
const float* channels_of(abi::Tensor* vector, std::int64_t channels);

Owned empty_vector(std::int64_t length);
Owned empty_like(const View& dense, std::int64_t elements);
Owned undefined();
Owned another(abi::Tensor* reference);

}  // namespace onedsl::torch
