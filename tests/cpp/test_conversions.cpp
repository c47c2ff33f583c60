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
  float (*widen)(Bits);
  Bits (*narrow)(float);

  Bits infinity() const { return static_cast<Bits>(0x7fffU >> fraction_bits << fraction_bits); }
  bool is_nan(const Bits bits) const { return (bits & 0x7fffU) > infinity(); }

  // By the definition of the format. Infinity is the number that would come after the largest.
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

// A f32 and the 16 bits that it must become.
struct Narrowing {
  float from;
  Bits to;
};

// Every value, every midpoint between neighbours, and the f32 on either side of each midpoint.
std::vector<Narrowing> narrowings(const Format& format) {
  std::vector<Narrowing> all;
  for (const Bits sign : {Bits{0}, Bits{0x8000}}) {
    for (Bits bits = 0; bits < format.infinity(); ++bits) {
      const auto low = static_cast<Bits>(sign | bits);
      const auto high = static_cast<Bits>(low + 1);
      const auto even = bits % 2 == 0 ? low : high;
      const auto middle = static_cast<float>((format.value(low) + format.value(high)) / 2);
      const float outwards = sign == 0 ? HUGE_VALF : -HUGE_VALF;
      all.push_back({static_cast<float>(format.value(low)), low});
      all.push_back({std::nextafterf(middle, 0.0F), low});
      all.push_back({middle, even});
      all.push_back({std::nextafterf(middle, outwards), high});
    }
    const auto infinity = static_cast<Bits>(sign | format.infinity());
    all.push_back({sign == 0 ? HUGE_VALF : -HUGE_VALF, infinity});
    all.push_back({sign == 0 ? 3.4028234e38F : -3.4028234e38F, infinity});
  }
  return all;
}

void test_single_values(const Format& format) {
  for (std::size_t i = 0; i < all_bits; ++i) {
    const auto bits = static_cast<Bits>(i);
    const float wide = format.widen(bits);
    if (format.is_nan(bits)) {
      check(std::isnan(wide) && format.is_nan(format.narrow(wide)), format.name, " NaN ", i);
    } else if ((bits & 0x7fff) == format.infinity()) {
      check(std::isinf(wide) && std::signbit(wide) == (bits > 0x7fff), format.name, " inf ", i);
    } else {
      check(same_bits(wide, static_cast<float>(format.value(bits))), format.name, " widens ", i);
    }
  }
  for (const Narrowing& n : narrowings(format)) {
    check(format.narrow(n.from) == n.to, format.name, " narrows ", n.from, " to ",
          format.narrow(n.from), ", not ", n.to);
  }
}

struct alignas(64) Line {
  std::array<Bits, 32> bits;
};

void test_vectors(const Format& format, const native::Isa isa) {
  const Conversions& vectors = conversions_of(isa);
  const auto line = [](const std::size_t i) { return i / 32; };
  const auto within = [](const std::size_t i) { return i % 32; };

  std::vector<Line> narrow(all_bits / 32);
  for (std::size_t i = 0; i < all_bits; ++i) {
    narrow[line(i)].bits[within(i)] = static_cast<Bits>(i);
  }
  std::vector<float> wide(all_bits);
  for (const auto widen : {vectors.widen, vectors.widen_pairs}) {
    widen(format.type, narrow[0].bits.data(), wide.data(), all_bits);
    for (std::size_t i = 0; i < all_bits; ++i) {
      const float expected = format.widen(static_cast<Bits>(i));
      check(std::isnan(expected) ? std::isnan(wide[i]) : same_bits(wide[i], expected), format.name,
            " widens ", i, " on ", name_of(isa));
    }
  }

  const std::vector<Narrowing> all = narrowings(format);
  const std::size_t padded = (all.size() + 31) / 32 * 32;
  wide.assign(padded, NAN);
  for (std::size_t i = 0; i < all.size(); ++i) wide[i] = all[i].from;
  narrow.resize(padded / 32);
  for (const auto convert : {vectors.narrow, vectors.narrow_pairs, vectors.stream_pairs}) {
    convert(format.type, wide.data(), narrow[0].bits.data(), padded);
    for (std::size_t i = 0; i < padded; ++i) {
      const Bits got = narrow[line(i)].bits[within(i)];
      check(i < all.size() ? got == all[i].to : format.is_nan(got), format.name, " narrows ",
            wide[i], " to ", got, " on ", name_of(isa));
    }
  }
}

}  // namespace

void test_conversions() {
  for (const Format& format : formats) {
    test_single_values(format);
    for (const native::Isa isa : isas()) test_vectors(format, isa);
  }
}

}  // namespace onedsl::test
