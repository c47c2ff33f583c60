#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

namespace onedsl {

constexpr std::int64_t cache_line = 64;  // bytes

// `other` is any type that no operation supports.
enum class DataType : std::uint8_t { f32, bf16, f16, other };

constexpr std::array type_names = {"f32", "bf16", "f16", "other"};

constexpr const char* name_of(const DataType type) noexcept {
  return type_names[static_cast<std::size_t>(type)];
}

// Returns the type of a name, nullopt if there is none.
constexpr std::optional<DataType> data_type_of(const std::string_view name) noexcept {
  for (std::size_t i = 0; i < type_names.size(); ++i) {
    if (name == type_names[i]) return static_cast<DataType>(i);
  }
  return std::nullopt;
}

constexpr std::size_t size_of(const DataType type) noexcept {
  return type == DataType::f32 ? 4 : 2;
}

// A type of the tensors, and a type that their statistics may have.
using TypePair = std::pair<DataType, DataType>;
inline constexpr std::array supported_types = {
    TypePair{DataType::f32, DataType::f32}, TypePair{DataType::bf16, DataType::f32},
    TypePair{DataType::bf16, DataType::bf16}, TypePair{DataType::f16, DataType::f32}};

class TypePairs {
 public:
  constexpr void add(const TypePair pair) noexcept { bits_ |= 1U << index(pair); }
  constexpr bool has(const TypePair pair) const noexcept {
    return (bits_ >> index(pair) & 1U) != 0;
  }
  // Returns whether a pair has this type of the tensors.
  constexpr bool has(const DataType data) const noexcept {
    return (bits_ >> index({data, DataType::f32}) & 0xFU) != 0;
  }

 private:
  static constexpr unsigned index(const TypePair pair) noexcept {
    return 4 * static_cast<unsigned>(pair.first) + static_cast<unsigned>(pair.second);
  }

  unsigned bits_ = 0;
};

// "batch": mean and variance are computed from src, and the gradient flows through them.
// "frozen": they are constants, which only training_backward supports.
enum class StatisticsKind : std::uint8_t { batch, frozen };

// What the forward pass returns as batch_variance, and the gradient reads as variance: the biased
// variance, or 1 / sqrt(variance + epsilon), which PyTorch saves. In the second case the gradient
// does not use epsilon.
enum class VarianceKind : std::uint8_t { variance, inverse_stddev };

// A run consists of a pass that computes totals (see ports.hpp) and a pass that computes the
// results from them. For a batch that is split into parts, each pass is a run of its own, and the
// caller merges the parts' totals.
enum class Pass : std::uint8_t { both, reduce, apply };

}  // namespace onedsl
