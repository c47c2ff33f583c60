#pragma once

#include <cstddef>
#include <cstdint>

namespace onedsl {

enum class DataType { f32, bf16, f16 };

constexpr std::size_t size_of(DataType type) noexcept { return type == DataType::f32 ? 4 : 2; }

// "batch": mean and variance are those of src, and the gradient flows through them.
// "frozen": they are constants.
enum class Statistics { batch, frozen };

}  // namespace onedsl
