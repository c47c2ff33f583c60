#pragma once

// The elementwise formulas: what is summed of each element, and what is written.

#include <type_traits>

#include "activations.inl"
#include "coefficient_tables.inl"
#include "kernels.hpp"
#include "ports.inl"
#include "vector.hpp"
#include "vector_pair.hpp"

namespace onedsl::native::ONEDSL_ISA {
namespace {

// An element adds `factor` to one sum of its channel and the product factor * deviation to the
// other, where deviation = src - pivot. The factor is diff_dst in the gradient and the deviation
// in the forward pass.
struct Terms {
  Vec factor;
  Vec deviation;
};

struct PairTerms {
  Terms a;
  Terms b;
};

inline VecPair pair_of(const Vec a, const Vec b) { return {a, b}; }
inline PairTerms pair_of(const Terms& a, const Terms& b) { return {a, b}; }

// Evaluate a formula for one vector, or for each of a pair.
template <class Formula_, class... Values>
inline auto evaluate(const Formula_& formula, const Coefficients& k, const Values&... values) {
  return formula(k, values...);
}
template <class Formula_, class... Values>
inline auto evaluate(const Formula_& formula, const PairCoefficients& k, const Values&... values) {
  // In two statements: as arguments of one call they would be evaluated in reverse, and memory
  // would be read backwards.
  const auto a = formula(k.a, values.a...);
  const auto b = formula(k.b, values.b...);
  return pair_of(a, b);
}

inline Terms gradient_terms(const Coefficients& k, const Vec x, const Vec d) {
  return {d, x - k.pivot};
}
inline Terms moment_terms(const Coefficients& k, const Vec x) {
  const Vec deviation = x - k.pivot;
  return {deviation, deviation};
}

// src - mean comes first, which keeps the precision where the mean is large. `beta` contains what
// f32 cannot represent of the mean.
inline Vec normalized(const Coefficients& k, const Vec x) {
  return multiply_add(x - k.mean, k.scale, k.beta);
}
inline Vec batch_gradient(const Coefficients& k, const Vec x, const Vec d) {
  return k.scale * subtract_product(d - k.shift, x - k.mean, k.slope);
}
inline Vec frozen_gradient(const Coefficients& k, const Vec d) { return k.scale * d; }

// Prefetches elements of the tensors that a formula reads.
template <class Formula_>
inline void prefetch(const Formula_& formula, const Index begin, const Index count) {
  formula.inputs([=](const auto& tensor) { prefetch(tensor.data(), begin, count); });
}

// Prefetches what is read a distance after the elements at `begin`, which are columns.
template <class Formula_>
inline void prefetch_ahead(const Formula_& formula, const Index begin, const Index count) {
  formula.inputs(
      [=](const auto& tensor) { prefetch(tensor.data(), begin + tensor.ahead(), count); });
}

// The gradient of an activation whose derivative is that at dst: diff_dst times the derivative.
template <class T, class Formula_>
class DiffByDst {
 public:
  static constexpr bool is_mask = Formula_::is_mask;
  static constexpr bool may_be_stored = true;

  explicit DiffByDst(const KernelArgs& args)
      : diff_dst_(tensor<T>(args, Input::diff_dst)),
        dst_(tensor<T>(args, Input::dst)),
        formula_(args) {}

  template <class K, class Access, class Values>
  auto at(const Index i, const K& k, const Access& access, const Values& /*x*/) const {
    const auto product = [this](const Coefficients&, const Vec d, const Vec y) {
      return formula_.gradient(d, y);
    };
    const auto d = access.read(diff_dst_.at(i));
    return evaluate(product, k, d, access.read(dst_.at(i)));
  }

  void move(const Index positions, const Index channels) {
    diff_dst_.move(positions, channels);
    dst_.move(positions, channels);
  }

  template <class Visit>
  void inputs(const Visit& visit) const {
    visit(diff_dst_);
    visit(dst_);
  }

 private:
  Tensor<const T> diff_dst_;
  Tensor<const T> dst_;
  Formula_ formula_;
};

// The gradient of an activation: diff_dst times the derivative. Its argument is recomputed from src
// and the residual, with the bits of the forward pass. Without the branch for a residual, the
// gradient of a ReLU takes 0.95 of the time (NXC, bf16, in cache).
template <class T, class Formula_, bool may_have_residual = true>
class ActDiff {
 public:
  static constexpr bool is_mask = Formula_::is_mask;
  // A mask that depends on src alone takes less time to recompute than to store.
  static constexpr bool may_be_stored = may_have_residual;

  explicit ActDiff(const KernelArgs& args)
      : diff_dst_(tensor<T>(args, Input::diff_dst)),
        residual_(tensor<T>(args, Input::residual)),
        formula_(args) {}

  template <class K, class Access, class Values>
  auto at(const Index i, const K& k, const Access& access, const Values& x) const {
    const auto plain = [this](const Coefficients& c, const Vec d, const Vec xv) {
      return formula_.gradient(d, normalized(c, xv));
    };
    const auto with_residual = [this](const Coefficients& c, const Vec d, const Vec xv,
                                      const Vec residual) {
      return formula_.gradient(d, normalized(c, xv) + residual);
    };
    const auto d = access.read(diff_dst_.at(i));
    return has_residual() ? evaluate(with_residual, k, d, x, access.read(residual_.at(i)))
                          : evaluate(plain, k, d, x);
  }

  void move(const Index positions, const Index channels) {
    diff_dst_.move(positions, channels);
    residual_.move(positions, channels);
  }

  template <class Visit>
  void inputs(const Visit& visit) const {
    visit(diff_dst_);
    if (has_residual()) visit(residual_);
  }

 private:
  bool has_residual() const { return may_have_residual && residual_; }

  Tensor<const T> diff_dst_;
  Tensor<const T> residual_;
  Formula_ formula_;
};

// ---- What is summed. The lanes that an access leaves out add nothing, because their src is the
// pivot. ----

template <class T>
class GradientTerms {
 public:
  using Element = T;
  static constexpr bool prefetches = sizeof(T) < sizeof(float);

  explicit GradientTerms(const KernelArgs& args)
      : src_(tensor<T>(args, Input::src)), diff_dst_(tensor<T>(args, Input::diff_dst)) {}

  template <class K, class Access>
  auto at(const Index i, const K& k, const Access& access) const {
    return evaluate(gradient_terms, k, access.read(src_.at(i), pivot_of(k)),
                    access.read(diff_dst_.at(i)));
  }

  void move(const Index positions, const Index channels) {
    src_.move(positions, channels);
    diff_dst_.move(positions, channels);
  }

  template <class Visit>
  void inputs(const Visit& visit) const {
    visit(src_);
    visit(diff_dst_);
  }

 private:
  Tensor<const T> src_;
  Tensor<const T> diff_dst_;
};

template <class T, class Diff, bool stores_diff = false>
class ActGradientTerms {
 public:
  using Element = T;
  static constexpr bool prefetches = true;

  explicit ActGradientTerms(const KernelArgs& args)
      : src_(tensor<T>(args, Input::src)),
        diff_(args),
        stored_diff_(stores_diff ? tensor<T>(args, args.stored_diff) : Tensor<T>()),
        // The apply pass finds what is stored of planes in the cache.
        non_temporal_(args.non_temporal && args.order.columns && rows_are_aligned(args)) {}

  template <class K, class Access>
  auto at(const Index i, const K& k, const Access& access) const {
    const auto x = access.read(src_.at(i), pivot_of(k));
    const auto d = diff_.at(i, k, access, x);
    if constexpr (stores_diff) access.write(stored_diff_.at(i), d, non_temporal_);
    return evaluate(gradient_terms, k, x, d);
  }

  void move(const Index positions, const Index channels) {
    src_.move(positions, channels);
    diff_.move(positions, channels);
    stored_diff_.move(positions, channels);
  }

  template <class Visit>
  void inputs(const Visit& visit) const {
    visit(src_);
    diff_.inputs(visit);
  }

 private:
  // Whether every row begins a cache line, and every position if they are processed one by one.
  bool rows_are_aligned(const KernelArgs& args) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(stored_diff_.data());
    const Index together = args.neighboring_positions ? args.order.repeat : 1;
    const Index row_bytes =
        together * stored_diff_.position_pitch() * static_cast<Index>(sizeof(T));
    return begin % cache_line == 0 && row_bytes % cache_line == 0;
  }

  Tensor<const T> src_;
  Diff diff_;
  Tensor<T> stored_diff_;
  bool non_temporal_;
};

template <class T>
class MomentTerms {
 public:
  using Element = T;
  static constexpr bool prefetches = sizeof(T) < sizeof(float);

  explicit MomentTerms(const KernelArgs& args) : src_(tensor<T>(args, Input::src)) {}

  template <class K, class Access>
  auto at(const Index i, const K& k, const Access& access) const {
    return evaluate(moment_terms, k, access.read(src_.at(i), pivot_of(k)));
  }

  void move(const Index positions, const Index channels) { src_.move(positions, channels); }

  template <class Visit>
  void inputs(const Visit& visit) const {
    visit(src_);
  }

 private:
  Tensor<const T> src_;
};

// ---- What is written. ----

template <class T>
class GradientResult {
 public:
  using Element = T;

  explicit GradientResult(const KernelArgs& args)
      : GradientResult(args, tensor<T>(args, Input::diff_dst)) {}
  // Of this gradient instead of diff_dst.
  GradientResult(const KernelArgs& args, const Tensor<const T>& diff)
      : src_(tensor<T>(args, Input::src)),
        diff_(diff),
        diff_src_(tensor<T>(args, Output::diff_src)),
        batch_(args.config.statistics_kind == StatisticsKind::batch),
        prefetches_src_(batch_ || !args.order.columns),
        non_temporal_(args.non_temporal) {}

  const T* begin() const { return diff_src_.data(); }
  Index pitch() const { return diff_src_.position_pitch(); }

  template <class K, class Access>
  void write(const Index i, const K& k, const Access& access) const {
    const auto d = access.read(diff_.at(i));
    const auto result = batch_ ? evaluate(batch_gradient, k, access.read(src_.at(i)), d)
                               : evaluate(frozen_gradient, k, d);
    access.write(diff_src_.at(i), result, non_temporal_);
  }

  void move(const Index positions, const Index channels) {
    src_.move(positions, channels);
    diff_.move(positions, channels);
    diff_src_.move(positions, channels);
  }

  template <class Visit>
  void inputs(const Visit& visit) const {
    if (prefetches_src_) visit(src_);
    visit(diff_);
  }

 private:
  Tensor<const T> src_;
  Tensor<const T> diff_;
  Tensor<T> diff_src_;
  bool batch_;
  // False if nothing reads src later: columns with frozen statistics. The sums of the next panel of
  // planes read it.
  bool prefetches_src_;
  bool non_temporal_;
};

template <class T, class Diff>
class ActGradientResult {
 public:
  using Element = T;

  explicit ActGradientResult(const KernelArgs& args)
      : src_(tensor<T>(args, Input::src)),
        diff_(args),
        diff_src_(tensor<T>(args, Output::diff_src)),
        diff_residual_(tensor<T>(args, Output::diff_residual)),
        non_temporal_(args.non_temporal) {}

  const T* begin() const { return diff_src_.data(); }
  Index pitch() const { return diff_src_.position_pitch(); }

  template <class K, class Access>
  void write(const Index i, const K& k, const Access& access) const {
    const auto x = access.read(src_.at(i));
    const auto d = diff_.at(i, k, access, x);
    if (diff_residual_) access.write(diff_residual_.at(i), d, non_temporal_);
    access.write(diff_src_.at(i), evaluate(batch_gradient, k, x, d), non_temporal_);
  }

  void move(const Index positions, const Index channels) {
    src_.move(positions, channels);
    diff_.move(positions, channels);
    diff_src_.move(positions, channels);
    diff_residual_.move(positions, channels);
  }

  template <class Visit>
  void inputs(const Visit& visit) const {
    visit(src_);
    diff_.inputs(visit);
  }

 private:
  Tensor<const T> src_;
  Diff diff_;
  Tensor<T> diff_src_;
  Tensor<T> diff_residual_;
  bool non_temporal_;
};

template <class T>
class NormalizedResult {
 public:
  using Element = T;

  explicit NormalizedResult(const KernelArgs& args)
      : src_(tensor<T>(args, Input::src)),
        dst_(tensor<T>(args, Output::dst)),
        non_temporal_(args.non_temporal) {}

  const T* begin() const { return dst_.data(); }
  Index pitch() const { return dst_.position_pitch(); }

  template <class K, class Access>
  void write(const Index i, const K& k, const Access& access) const {
    access.write(dst_.at(i), evaluate(normalized, k, access.read(src_.at(i))), non_temporal_);
  }

  void move(const Index positions, const Index channels) {
    src_.move(positions, channels);
    dst_.move(positions, channels);
  }

  template <class Visit>
  void inputs(const Visit& visit) const {
    visit(src_);
  }

 private:
  Tensor<const T> src_;
  Tensor<T> dst_;
  bool non_temporal_;
};

template <class T, class Formula_>
class ActResult {
 public:
  using Element = T;

  explicit ActResult(const KernelArgs& args)
      : src_(tensor<T>(args, Input::src)),
        residual_(tensor<T>(args, Input::residual)),
        dst_(tensor<T>(args, Output::dst)),
        formula_(args),
        non_temporal_(args.non_temporal) {}

  const T* begin() const { return dst_.data(); }
  Index pitch() const { return dst_.position_pitch(); }

  template <class K, class Access>
  void write(const Index i, const K& k, const Access& access) const {
    const auto x = access.read(src_.at(i));
    const auto plain = [this](const Coefficients& c, const Vec xv) {
      return formula_.value(normalized(c, xv));
    };
    const auto with_residual = [this](const Coefficients& c, const Vec xv, const Vec residual) {
      return formula_.value(normalized(c, xv) + residual);
    };
    const auto result = residual_ ? evaluate(with_residual, k, x, access.read(residual_.at(i)))
                                  : evaluate(plain, k, x);
    access.write(dst_.at(i), result, non_temporal_);
  }

  void move(const Index positions, const Index channels) {
    src_.move(positions, channels);
    residual_.move(positions, channels);
    dst_.move(positions, channels);
  }

  template <class Visit>
  void inputs(const Visit& visit) const {
    visit(src_);
    if (residual_) visit(residual_);
  }

 private:
  Tensor<const T> src_;
  Tensor<const T> residual_;
  Tensor<T> dst_;
  Formula_ formula_;
  bool non_temporal_;
};

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
