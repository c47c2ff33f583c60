#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "../core/types.hpp"
#include "pytorch.hpp"

// Access to PyTorch's tensors through its stable C interface.
namespace onedsl::torch {

// Throws std::runtime_error with PyTorch's message, if there is one, for an error.
void check(Error error);

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

// Completes the sentence "onedsl does not support ...". Null if something is supported.
using Reason = const char*;

// Reads a strided CPU tensor of a supported type, or returns the reason if it is not supported.
Reason read(const Tensor& tensor, View& view);

// Reads the elements of a contiguous vector of f32 of `length` elements.
Reason read_f32_vector(const Tensor& tensor, std::int64_t length, float*& data);

// PyTorch's batch norm keeps these two layouts in its results.
bool is_contiguous_or_channels_last(const View& v);

bool same_shape_and_type(const View& a, const View& b);
bool same_strides(const View& a, const View& b);  // of views of the same shape

OwnedTensor empty_vector(std::int64_t length);                     // of f32
OwnedTensor empty_vector(std::int64_t length, std::int32_t type);  // of a type of PyTorch's
OwnedTensor empty_like(const View& dense);
OwnedTensor undefined();

}  // namespace onedsl::torch
