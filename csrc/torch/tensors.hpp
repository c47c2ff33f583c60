#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <vector>

#include "../core/view.hpp"
#include "pytorch.hpp"

// Access to PyTorch's tensors through its stable C interface.
namespace onedsl::torch {

// Throws std::runtime_error with PyTorch's message, if there is one, for an error.
void throw_if(Error error);

// Calls a function. Throws an error for std::bad_alloc that contains PyTorch's text: programs that
// search for a batch size which fits in memory go on if they find it.
template <class Function>
auto with_pytorchs_errors(const Function& function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    throw std::runtime_error("onedsl: DefaultCPUAllocator: can't allocate memory");
  }
}

template <class T, class Argument>
T get(Error (*const function)(Argument*, T*), Argument* const of) {
  T value{};
  throw_if(function(of, &value));
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
  throw_if(function(arguments..., &made));
  return OwnedTensor(made);
}

template <class T = float>
T* memory_of(const Tensor& tensor) {
  return static_cast<T*>(get(api->mutable_data, &tensor));
}

// Returns whether a tensor is defined. No error is raised here: PyTorch's own kernel raises it.
inline bool is_defined(const Tensor& tensor) {
  bool defined = false;
  return api->is_defined(&tensor, &defined) == 0 && defined;
}

// Returns a description of a tensor, nullopt unless it is a strided one on the CPU.
std::optional<View> view_of(const Tensor& tensor);

// Returns the strides of results: those of PyTorch's batch norm, or of torch.empty_like(src).
// PyTorch's dst, or with diff_dst diff_src, is contiguous, or channels_last where src's strides
// suggest it. If the inputs are contiguous in one of these memory formats, it is src's.
std::vector<std::ptrdiff_t> pytorch_strides(const View& src, const View* diff_dst);
std::vector<std::ptrdiff_t> empty_like_strides(const View& src, const View* diff_dst);

OwnedTensor empty_vector(std::int64_t length);  // of f32
OwnedTensor empty_vector(std::int64_t length, std::int32_t type);
OwnedTensor empty_like(const View& like);

}  // namespace onedsl::torch
