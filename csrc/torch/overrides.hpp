#pragma once

#include <cstdint>
#include <string>
#include <vector>

// CPU kernels of PyTorch's batch-norm ops, which replace PyTorch's own. They compute the forward
// pass in training and the gradient of tensors in a supported type with f32 parameters. Every other
// call goes to PyTorch's own kernel.
namespace onedsl::torch {

// Returns the names of the ops of PyTorch whose kernels override_pytorch() can override.
std::vector<std::string> overridden_ops();

// Registers PyTorch's own kernels, as onedsl calls them, for ops of a library that has the names
// and signatures of these ops. They throw std::runtime_error if this PyTorch lacks the kernel.
// Must be called once.
void register_pytorchs_kernels(const char* library);

// Overrides PyTorch's kernels of some of the ops for the rest of the process. Until begin_use(),
// the new kernels call PyTorch's own. Must be called once.
void override_pytorch(const std::vector<std::string>& ops);

// The kernels are in use until each begin_use() has been ended, by end_use() with its result or by
// end_all_uses(). Thread-safe at any time. A kernel that is already running is not affected.
std::uint64_t begin_use() noexcept;
void end_use(std::uint64_t number) noexcept;
void end_all_uses() noexcept;
bool in_use() noexcept;

}  // namespace onedsl::torch
