#pragma once

// The formulas of the activations: the value at y, and the gradient with respect to y. All of f32
// is valid, and the value of NaN is NaN. The gradients at NaN and infinity are those of PyTorch's
// formulas, whose comparisons with NaN are false.

#include "../../core/activation.hpp"
#include "kernels.hpp"
#include "vector.hpp"

namespace onedsl::native::ONEDSL_ISA {
namespace {

// Return the value of a polynomial, whose first coefficient is that of the highest power.
template <class... Coefficients_>
inline Vec polynomial(const Vec x, const float highest, const Coefficients_... others) {
  Vec value = broadcast(highest);
  ((value = multiply_add(value, x, broadcast(others))), ...);
  return value;
}

// Return e^x * e^low for x <= 0 and a small `low`. The error is about 1 unit in the last place, of
// subnormal results as well.
template <class... Low>
inline Vec exp_of_negative(const Vec x, const Low... low) {
  // e^x = 2^n * e^r, where |r| <= log(2) / 2. The polynomial is a minimax fit of
  // (e^r - 1 - r) / r^2, times r^2, plus 1 + r.
  const Vec bounded = at_least(x, broadcast(-104));  // e^-104 rounds to zero
  const Vec to_integer = broadcast(0x1.8p23f);       // its last place is 1
  const Vec shifted = multiply_add(bounded, broadcast(0x1.715476p0f), to_integer);
  const Vec n = shifted - to_integer;
  Vec r = subtract_product(bounded, n, broadcast(0x1.62ep-1f));  // the product is exact
  r = (subtract_product(r, n, broadcast(0x1.0bfbe8p-15f)) + ... + low);
  const Vec power = polynomial(r, 0x1.6a1a6ep-10f, 0x1.123fc6p-7f, 0x1.555916p-5f, 0x1.55548ap-3f,
                               0x1.fffffcp-2f, 1.0f, 1.0f);
  return multiply_by_power_of_2(power, n, shifted);
}

// The logistic function 1 / (1 + e^-y) at y and at -y: their sum is 1, and both are precise.
struct Logistic {
  Vec value;
  Vec other;
};
inline Logistic logistic(const Vec y) {
  const Vec e = exp_of_negative(negative_magnitude(y));
  const Vec large = inverse(broadcast(1) + e);
  const Vec small = e * large;
  return {where_positive(y, large, small), where_positive(y, small, large)};
}

// The distribution function of the standard normal distribution, and its density.
struct Normal {
  Vec probability;
  Vec density;
};
inline Normal normal(const Vec y) {
  // The probability of values beyond a = |y| is density(a) / (a + k) * f(s), where
  // s = (a - k) / (a + k) and k = 3.5. The polynomial is a minimax fit of f in relative error.
  const Vec a = broadcast(0) - at_least(negative_magnitude(y), broadcast(-16));
  // The square without its rounding error: the upper part has 12 bits.
  const Vec upper = upper_bits(a);
  const Vec low = broadcast(-0.5f) * ((a - upper) * (a + upper));
  const Vec e = exp_of_negative(broadcast(-0.5f) * (upper * upper), low);
  const Vec t = inverse(a + broadcast(3.5f));
  const Vec s = subtract_product(broadcast(1), broadcast(7), t);
  const Vec tail =
      e * (t * polynomial(s, 0x1.b7d7fap-14f, 0x1.afb73p-12f, -0x1.036302p-11f, -0x1.9f3a6cp-9f,
                          0x1.a9a2a2p-8f, 0x1.1d2868p-6f, -0x1.db5adp-4f, 0x1.42fed2p-2f,
                          -0x1.21914ep-1f, 0x1.7d241ap-1f));
  return {where_positive(y, broadcast(1) - tail, tail), e * broadcast(0x1.988454p-2f)};
}

// ---- Short formulas: each has kernels of its own. gradient(d, y) is d times the derivative. If
// the derivative is 0 or 1, it is a mask, which rounds nothing. It follows from dst if that of y is
// that of value(y), see Attributes::derivative_follows_from_dst(). ----

class PlainRelu {
 public:
  static constexpr bool is_mask = true;
  static constexpr bool follows_from_dst = true;

  explicit PlainRelu(const KernelArgs& args)
      : clip_(broadcast(args.relu.clip)),
        zero_threshold_(broadcast(args.relu.zero_threshold)),
        clip_threshold_(broadcast(args.relu.clip_threshold)) {}

  Vec value(const Vec y) const { return relu(y, clip_); }
  Vec gradient(const Vec d, const Vec y) const {
    return where_open(d, y, zero_threshold_, clip_threshold_);
  }

 private:
  Vec clip_;
  Vec zero_threshold_;
  Vec clip_threshold_;
};

class LeakyRelu {
 public:
  static constexpr bool is_mask = false;
  static constexpr bool follows_from_dst = true;

  explicit LeakyRelu(const KernelArgs& args) : slope_(broadcast(args.negative_slope)) {}

  Vec value(const Vec y) const { return where_positive(y, y, y * slope_); }
  Vec gradient(const Vec d, const Vec y) const { return where_positive(y, d, d * slope_); }

 private:
  Vec slope_;
};

class Hardswish {
 public:
  static constexpr bool is_mask = false;
  static constexpr bool follows_from_dst = false;

  explicit Hardswish(const KernelArgs& /*args*/) {}

  static Vec value(const Vec y) {
    const Vec shifted = at_most(at_least(y + broadcast(3), broadcast(0)), broadcast(6));
    return y * (shifted * broadcast(1 / 6.0f));  // the factor is 1 where y >= 3
  }
  static Vec gradient(const Vec d, const Vec y) {
    // As PyTorch, 0 at -3 and 1 at 3.
    const Vec inside = d * multiply_add(y, broadcast(1 / 3.0f), broadcast(0.5f));
    const Vec above = where_less(y, broadcast(3), inside, d);
    return where_at_least(broadcast(-3), y, Vec{}, above);
  }
};

// ---- Long formulas: functions that the kernels of `Called` call. ----

Vec silu(const Vec y) { return y * logistic(y).value; }
Vec silu_derivative(const Vec y) {
  const Logistic l = logistic(y);
  return multiply_add(y * l.value, l.other, l.value);
}

Vec gelu(const Vec y) { return y * normal(y).probability; }
Vec gelu_derivative(const Vec y) {
  const Normal n = normal(y);
  return multiply_add(y, n.density, n.probability);
}

// (1 + tanh(u)) / 2 is the logistic function of 2u, which is linear * (y + 0.044715 y^3) here.
constexpr float gelu_tanh_linear = 0x1.988454p0f;  // 2 * sqrt(2 / pi)
constexpr float gelu_tanh_cubic = 0.044715f * gelu_tanh_linear;
// Return linear + a * y^2, with a bound where the logistic function is constant.
inline Vec gelu_tanh_factor(const Vec y, const float a) {
  const Vec square = at_most(y * y, broadcast(1000));
  return multiply_add(square, broadcast(a), broadcast(gelu_tanh_linear));
}
Vec gelu_tanh(const Vec y) { return y * logistic(y * gelu_tanh_factor(y, gelu_tanh_cubic)).value; }
Vec gelu_tanh_derivative(const Vec y) {
  const Logistic l = logistic(y * gelu_tanh_factor(y, gelu_tanh_cubic));
  const Vec slope = gelu_tanh_factor(y, 3 * gelu_tanh_cubic);  // of the argument
  return multiply_add(y * l.value, l.other * slope, l.value);
}

// The kernels have dozens of loops. With these formulas in each of them, the extension would have
// three times its size.
class Called {
 public:
  static constexpr bool is_mask = false;
  static constexpr bool follows_from_dst = false;

  explicit Called(const KernelArgs& args) {
    switch (args.config.attributes.activation) {
      case Activation::gelu:
        value_ = gelu;
        derivative_ = gelu_derivative;
        break;
      case Activation::gelu_tanh:
        value_ = gelu_tanh;
        derivative_ = gelu_tanh_derivative;
        break;
      case Activation::silu:
        value_ = silu;
        derivative_ = silu_derivative;
        break;
      case Activation::none:
      case Activation::relu:
      case Activation::leaky_relu:
      case Activation::hardswish:
        break;  // have kernels of their own
    }
  }

  Vec value(const Vec y) const { return value_(y); }
  Vec gradient(const Vec d, const Vec y) const { return d * derivative_(y); }

 private:
  Vec (*value_)(Vec) = nullptr;
  Vec (*derivative_)(Vec) = nullptr;
};

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
