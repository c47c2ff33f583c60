#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>

#include "../core/view.hpp"
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
  void operator()(Tensor* const tensor) const noexcept { api->delete_tensor(tensor); }
};
using OwnedTensor = std::unique_ptr<Tensor, DeleteTensor>;

// Returns what a function of PyTorch makes.
template <class... Parameters, class... Arguments>
OwnedTensor make(Error (*const function)(Parameters...), const Arguments... arguments) {
  Tensor* made = nullptr;
  check(function(arguments..., &made));
  return OwnedTensor(made);
}

template <class T = float>
T* memory_of(const Tensor& tensor) {
  return static_cast<T*>(get(api->mutable_data, &tensor));
}

// Arguments are not supported. The message completes the sentence "onedsl does not support ...".
class Unsupported : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// The following functions throw Unsupported.

// Returns a view of a strided CPU tensor of a supported type.
View view_of(const Tensor& tensor);

// Returns a view whose elements are aligned.
View aligned(const View& v);

// Return a contiguous vector of f32 of `length` elements, and the elements of an aligned one.
View f32_vector_view(const Tensor& tensor, std::int64_t length);
const float* f32_vector(const Tensor& tensor, std::int64_t length);

// PyTorch's batch norm keeps these two layouts in its results.
bool is_contiguous_or_channels_last(const View& v);

OwnedTensor empty_vector(std::int64_t length);  // of f32
OwnedTensor empty_like(const View& dense);

}  // namespace onedsl::torch
