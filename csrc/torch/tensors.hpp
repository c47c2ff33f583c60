#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>

#include "../core/types.hpp"
#include "pytorch.hpp"

// Access to PyTorch's tensors through its stable C interface.
namespace onedsl::torch {

inline void check(const Error error) {
  if (error != 0) throw std::runtime_error("onedsl: a function of PyTorch failed");
}

template <class T, class Argument>
T get(Error (*const function)(Argument*, T*), Argument* const of) {
  T value{};
  check(function(of, &value));
  return value;
}

struct DeleteTensor {
  void operator()(Tensor* const tensor) const noexcept { api.delete_tensor(tensor); }
};
using OwnedTensor = std::unique_ptr<Tensor, DeleteTensor>;

template <class T = float>
T* memory_of(const Tensor& tensor) {
  return static_cast<T*>(get(api.mutable_data, &tensor));
}

// A dense or strided CPU tensor of a supported type. Valid as long as the tensor.
struct View {
  DataType type;
  std::int64_t rank;
  const std::int64_t* sizes;
  const std::int64_t* strides;
  const void* data;
};

// Returns nothing if the tensor is undefined, has no memory, has unaligned elements, or is not a
// strided CPU tensor of a supported type.
std::optional<View> view(const Tensor& tensor);

// PyTorch's batch norm keeps these two layouts in its results.
bool is_contiguous_or_channels_last(const View& v);

bool same_shape_and_type(const View& a, const View& b);
bool same_strides(const View& a, const View& b);  // of views of the same shape

// Returns the elements of a contiguous vector of `length` elements of the type, else null.
const float* f32_vector(const Tensor& tensor, std::int64_t length);
const double* f64_vector(const Tensor& tensor, std::int64_t length);

OwnedTensor empty_vector(std::int64_t length);  // of f32
OwnedTensor empty_f64_vector(std::int64_t length);
OwnedTensor empty_like(const View& dense);
OwnedTensor empty_clonable_like(const View& dense);  // memory of PyTorch's, for lazy clones
OwnedTensor empty_contiguous(const View& like);
OwnedTensor empty_bytes();  // a uint8 tensor without elements
OwnedTensor undefined();

}  // namespace onedsl::torch
