#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

// The activations that follow batch norm: an enumerator, and a row of `activations::all`.
// CONTRIBUTING.md lists what else a new one needs.
namespace onedsl {

enum class Activation : std::uint8_t {
  none,
  relu,
  leaky_relu,
  silu,
  hardswish,
  gelu,
  gelu_tanh,
};

// Numbers between these limits are positive and finite in f32, oneDNN's type of epsilon. Unlike a
// conversion, the limits do not depend on the rounding mode and on whether subnormal numbers are
// flushed.
inline constexpr std::pair<double, double> positive_limits(0x1p-150, 0x1.ffffffp127);
inline constexpr std::pair<double, double> finite_limits(-0x1.ffffffp127, 0x1.ffffffp127);

// What is known of an activation. Its formulas are in csrc/native/activations.inl.
struct ActivationInfo {
  const char* id;    // the enumerator's name, by which Python knows the activation
  const char* name;  // PyTorch's name of the layer
  // Kernels call its formulas, which are not inlined, and compute its derivative once, not twice.
  bool has_long_formula;
  // Its parameter, if it has one: the name, the default, and the limits, which are not allowed.
  const char* parameter = "";
  double parameter_default = 0;
  std::pair<double, double> limits = {};
};

namespace activations {

// Indexed by Activation.
constexpr std::array all = {
    ActivationInfo{"none", "", false},
    // The upper bound is 6 for ReLU6. oneDNN's op with a bound is Clamp.
    ActivationInfo{"relu", "ReLU", false, "clip", std::numeric_limits<double>::infinity(),
                   positive_limits},
    ActivationInfo{"leaky_relu", "LeakyReLU", false, "negative_slope", 0.01, finite_limits},
    ActivationInfo{"silu", "SiLU", true},
    ActivationInfo{"hardswish", "Hardswish", false},
    ActivationInfo{"gelu", "GELU", true},
    ActivationInfo{"gelu_tanh", "GELU (tanh)", true},
};

}  // namespace activations

constexpr const ActivationInfo& info_of(const Activation activation) noexcept {
  return activations::all[static_cast<std::size_t>(activation)];
}

// Returns whether an activation may have this parameter. nullopt means its default.
constexpr bool is_valid_parameter(const Activation activation,
                                  const std::optional<double> parameter) noexcept {
  const auto& [least, most] = info_of(activation).limits;
  return !parameter || (least < *parameter && *parameter < most);
}

// Returns the activation of an id, nullopt if there is none.
constexpr std::optional<Activation> activation_of(const std::string_view id) noexcept {
  for (std::size_t i = 0; i < activations::all.size(); ++i) {
    if (id == activations::all[i].id) return static_cast<Activation>(i);
  }
  return std::nullopt;
}

}  // namespace onedsl
