#pragma once

#include <cstddef>
#include <cstdint>

namespace onedsl {

enum class DataType : std::uint8_t { f32, bf16, f16 };

constexpr std::size_t size_of(const DataType type) noexcept {
  return type == DataType::f32 ? 4 : 2;
}

// "batch": mean and variance are those of src, and the gradient flows through them.
// "frozen": they are constants.
enum class Statistics : std::uint8_t { batch, frozen };

// What the port `variance` holds: the biased variance, or, as PyTorch's forward pass saves it,
// 1 / sqrt(variance + epsilon), where epsilon has no part any more.
enum class VarianceKind : std::uint8_t { variance, inverse_stddev };

// A run is two passes: one makes sums, and the other makes results of them. Each can run by itself,
// on parts of a tensor: the sums of all parts are then added up in between.
enum class Pass : std::uint8_t { both, reduce, apply };

}  // namespace onedsl
