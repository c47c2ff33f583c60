#pragma once

#include <cstddef>
#include <cstdint>

#include "core/types.hpp"

// The kernels' conversions between a 16-bit type and f32, applied to arrays. `count` must be a
// multiple of the elements of two vectors, and the 16-bit array must be aligned to 64 bytes.
namespace onedsl::test {

struct Conversions {
  void (*to_f32)(DataType type, const std::uint16_t* from, float* to, std::size_t count);
  void (*pairs_to_f32)(DataType type, const std::uint16_t* from, float* to, std::size_t count);
  void (*from_f32)(DataType type, const float* from, std::uint16_t* to, std::size_t count);
  void (*pairs_from_f32)(DataType type, const float* from, std::uint16_t* to, std::size_t count);
  void (*stream_pairs_from_f32)(DataType type, const float* from, std::uint16_t* to,
                                std::size_t count);
};

}  // namespace onedsl::test

namespace onedsl::native {

namespace baseline {
const test::Conversions& conversions();
}
namespace avx2 {
const test::Conversions& conversions();
}
namespace avx512 {
const test::Conversions& conversions();
}
namespace avx512_bf16 {
const test::Conversions& conversions();
}

}  // namespace onedsl::native
