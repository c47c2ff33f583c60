#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "boxed.hpp"
#include "compute.hpp"

// What the kernels of onedsl's ops share. They have no kernels of PyTorch to call instead, so
// unsupported arguments are errors.
namespace onedsl::torch {

// Registers the kernels of the ops that onedsl/torch/_operators.py defines. Must be called before
// other functions of this folder. Returns false if the process has registered them before. Throws
// std::runtime_error if this PyTorch is unsupported.
bool register_onedsl_ops();

// The registered kernel of an op: its results are PyTorch's tensors.
template <auto op>
void onedsl_kernel(Value* const values, std::uint64_t, std::uint64_t) {
  with_arguments(values, op, [&](const auto&... arguments) {
    write_results(values, with_pytorchs_errors([&] { return op(arguments...); }));
  });
}

// The arguments of the ops, by Input.
using ArgumentNames = std::array<const char*, num_ports(Input{})>;
constexpr ArgumentNames forward_names = {"src",    nullptr, "running_mean", "running_var",
                                         "weight", "bias",  "residual",     nullptr};
constexpr ArgumentNames backward_names = {"src",    "diff_dst", "mean",     "inverse_stddev",
                                          "weight", "bias",     "residual", "dst"};

// Throws std::invalid_argument for arguments that the ops do not support.
[[noreturn]] void reject(const std::string& reason);
[[noreturn]] void reject(const ArgumentNames& names, const Rejection& found);
void check_arguments(const ArgumentNames& names, TensorCall& call);

// Returns a copy of a vector, `absent` for each of `length` channels if there is none.
OwnedTensor copy_of(const std::optional<View>& vector, std::int64_t length, float absent = 0);

// Registers the kernels of the ops of one pass.
void register_pass_ops();

}  // namespace onedsl::torch
