#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include "check.hpp"
#include "conversions.hpp"
#include "core/convert_16bit.hpp"
#include "isas.hpp"
#include "tests.hpp"

namespace onedsl::test {
namespace {

using Bits = std::uint16_t;
constexpr std::size_t all_bits = 65536;

struct Format {
  const char* name;
  DataType type;
  int fraction_bits;
  int bias;
  float (*to_f32)(Bits);
  Bits (*from_f32)(float);

  Bits infinity() const { return static_cast<Bits>(0x7fffU >> fraction_bits << fraction_bits); }
  bool is_nan(const Bits bits) const { return (bits & 0x7fffU) > infinity(); }

  // Return the value by the definition of the format. For infinity, return the number that would
  // follow the largest finite one.
  double value(const Bits bits) const {
    const int exponent = (bits & 0x7fff) >> fraction_bits;
    const int fraction = bits & ((1 << fraction_bits) - 1);
    const int significand = exponent > 0 ? fraction + (1 << fraction_bits) : fraction;
    const int scale = (exponent > 0 ? exponent : 1) - bias - fraction_bits;
    const double magnitude = std::ldexp(significand, scale);
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
  }
};

constexpr std::array formats = {
    Format{"bf16", DataType::bf16, 7, 127, bf16_to_f32, f32_to_bf16},
    Format{"f16", DataType::f16, 10, 15, f16_to_f32, f32_to_f16},
};

const Conversions& conversions_of(const native::Isa isa) {
  switch (isa) {
    case native::Isa::avx512_bf16:
      return native::avx512_bf16::conversions();
    case native::Isa::avx512:
      return native::avx512::conversions();
    case native::Isa::avx2:
      return native::avx2::conversions();
    case native::Isa::baseline:
      break;
  }
  return native::baseline::conversions();
}

bool same_bits(const float a, const float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

// An f32 number and the 16-bit number that it must be rounded to.
struct Rounding {
  float from;
  Bits to;
};

// Return the roundings of every 16-bit value, of the midpoints between neighboring values, and of
// the f32 numbers next to these midpoints.
std::vector<Rounding> all_roundings(const Format& format) {
  std::vector<Rounding> all;
  for (const Bits sign : {Bits{0}, Bits{0x8000}}) {
    const float f32_infinity = sign == 0 ? HUGE_VALF : -HUGE_VALF;
    for (Bits bits = 0; bits < format.infinity(); ++bits) {
      const auto low = static_cast<Bits>(sign | bits);
      const auto high = static_cast<Bits>(low + 1);
      const auto even = bits % 2 == 0 ? low : high;
      const auto middle = static_cast<float>((format.value(low) + format.value(high)) / 2);
      all.push_back({static_cast<float>(format.value(low)), low});
      all.push_back({std::nextafterf(middle, 0.0F), low});
      all.push_back({middle, even});
      all.push_back({std::nextafterf(middle, f32_infinity), high});
    }
    const auto infinity = static_cast<Bits>(sign | format.infinity());
    all.push_back({f32_infinity, infinity});
    all.push_back({sign == 0 ? 3.4028234e38F : -3.4028234e38F, infinity});
  }
  return all;
}

void test_scalars(const Format& format) {
  for (std::size_t i = 0; i < all_bits; ++i) {
    const auto bits = static_cast<Bits>(i);
    const float wide = format.to_f32(bits);
    if (format.is_nan(bits)) {
      check(std::isnan(wide) && format.is_nan(format.from_f32(wide)), format.name, " NaN ", i);
    } else if ((bits & 0x7fff) == format.infinity()) {
      check(std::isinf(wide) && std::signbit(wide) == (bits > 0x7fff), format.name, " inf ", i);
    } else {
      check(same_bits(wide, static_cast<float>(format.value(bits))), format.name, " to f32: ", i);
    }
  }
  for (const Rounding& r : all_roundings(format)) {
    check(format.from_f32(r.from) == r.to, "f32 to ", format.name, ": ", r.from, " to ",
          format.from_f32(r.from), ", not ", r.to);
  }
}

struct alignas(64) Line {
  std::array<Bits, 32> bits;
};

void test_vectors(const Format& format, const native::Isa isa) {
  const Conversions& vectors = conversions_of(isa);
  const auto line = [](const std::size_t i) { return i / 32; };
  const auto within = [](const std::size_t i) { return i % 32; };

  std::vector<Line> bits(all_bits / 32);
  for (std::size_t i = 0; i < all_bits; ++i) {
    bits[line(i)].bits[within(i)] = static_cast<Bits>(i);
  }
  std::vector<float> values(all_bits);
  for (const auto convert : {vectors.to_f32, vectors.pairs_to_f32}) {
    convert(format.type, bits[0].bits.data(), values.data(), all_bits);
    for (std::size_t i = 0; i < all_bits; ++i) {
      const float expected = format.to_f32(static_cast<Bits>(i));
      check(std::isnan(expected) ? std::isnan(values[i]) : same_bits(values[i], expected),
            format.name, " to f32: ", i, " on ", name_of(isa));
    }
  }

  const std::vector<Rounding> all = all_roundings(format);
  const std::size_t padded = (all.size() + 63) / 32 * 32;
  // NaN as a widened bf16 or f16 has it.
  constexpr std::array nan_bits = {0x7f810000U, 0x7fff0000U, 0xff810000U, 0xffff0000U};
  values.resize(padded);
  for (std::size_t i = 0; i < padded; ++i) {
    if (i < all.size())
      values[i] = all[i].from;
    else
      std::memcpy(&values[i], &nan_bits[i % nan_bits.size()], sizeof(float));
  }
  bits.resize(padded / 32);
  for (const auto convert :
       {vectors.from_f32, vectors.pairs_from_f32, vectors.stream_pairs_from_f32}) {
    convert(format.type, values.data(), bits[0].bits.data(), padded);
    for (std::size_t i = 0; i < padded; ++i) {
      const Bits got = bits[line(i)].bits[within(i)];
      check(i < all.size() ? got == all[i].to : format.is_nan(got), "f32 to ", format.name, ": ",
            values[i], " to ", got, " on ", name_of(isa));
    }
  }
}

}  // namespace

void test_conversions() {
  for (const Format& format : formats) {
    test_scalars(format);
    for (const native::Isa isa : isas()) test_vectors(format, isa);
  }
}

}  // namespace onedsl::test
