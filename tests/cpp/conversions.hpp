#pragma once

#include <cstddef>
#include <cstdint>

#include "core/types.hpp"

// The kernels' conversions between a 16-bit type and f32, of arrays: whole pairs of vectors, whose
// 16-bit side is aligned to 64 bytes.
namespace onedsl::test {

struct Conversions {
  void (*widen)(DataType type, const std::uint16_t* from, float* to, std::size_t count);
  void (*widen_pairs)(DataType type, const std::uint16_t* from, float* to, std::size_t count);
  void (*narrow)(DataType type, const float* from, std::uint16_t* to, std::size_t count);
  void (*narrow_pairs)(DataType type, const float* from, std::uint16_t* to, std::size_t count);
  void (*stream_pairs)(DataType type, const float* from, std::uint16_t* to, std::size_t count);
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
