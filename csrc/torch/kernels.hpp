#pragma once

#include <memory>
#include <string>

#include "stable_abi.hpp"

// PyTorch's batch norm in training, and its gradient, where a call is plain: dense float tensors
// and f32 statistics, as nearly all calls of a training are. Any other call goes to an op of
// onedsl's with the arguments of PyTorch's own, whose kernel is written in Python.
namespace onedsl::torch {

struct DeleteLibrary {
  void operator()(abi::Library* library) const noexcept;
};
using Registration = std::unique_ptr<abi::Library, DeleteLibrary>;

// Puts the kernels into PyTorch's dispatcher, for as long as the registration lives. Null if this
// PyTorch does not have the interface.
Registration register_kernels();

// To be called by a kernel in Python, which may not raise: why it has no results. PyTorch would
// keep no word of an exception between that kernel and this one.
void fail(std::string why);

}  // namespace onedsl::torch
