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

// Prefetches the tensors that a formula reads.
template <class Formula_>
inline void prefetch(const Formula_& formula, const Index begin, const Index count) {
  formula.inputs([=](const auto* const tensor) { prefetch(tensor, begin, count); });
}

// Prefetches what the terms at `begin` read a distance later, if they ask for it. NOTES.md has the
// measurements: for sums of f32 without a mask, the CPU's own prefetching is enough.
template <class Terms_>
inline void prefetch_ahead(const Terms_& terms, const Index begin, const Index count) {
  if constexpr (Terms_::prefetches) {
    prefetch(terms, begin + prefetch_distance<typename Terms_::Element>, count);
  }
}

// The gradient of an activation whose derivative is that at dst: diff_dst times the derivative.
template <class T, class Formula_>
class DiffByDst {
 public:
  static constexpr bool is_mask = Formula_::is_mask;
  static constexpr bool may_be_stored = true;

  explicit DiffByDst(const TileArgs& args)
      : diff_dst_(input<T>(args, Input::diff_dst)),
        dst_(input<T>(args, Input::dst)),
        formula_(args) {}

  template <class K, class Access, class Values>
  auto at(const Index i, const K& k, const Access& access, const Values& /*x*/) const {
    const auto product = [this](const Coefficients&, const Vec d, const Vec y) {
      return formula_.gradient(d, y);
    };
    const auto d = access.read(diff_dst_ + i);
    return evaluate(product, k, d, access.read(dst_ + i));
  }

  template <class Visit>
  void inputs(const Visit& visit) const {
    visit(diff_dst_);
    visit(dst_);
  }

 private:
  const T* diff_dst_;
  const T* dst_;
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

  explicit ActDiff(const TileArgs& args)
      : diff_dst_(input<T>(args, Input::diff_dst)),
        residual_(input<T>(args, Input::residual)),
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
    const auto d = access.read(diff_dst_ + i);
    return has_residual() ? evaluate(with_residual, k, d, x, access.read(residual_ + i))
                          : evaluate(plain, k, d, x);
  }

  template <class Visit>
  void inputs(const Visit& visit) const {
    visit(diff_dst_);
    if (has_residual()) visit(residual_);
  }

 private:
  bool has_residual() const { return may_have_residual && residual_ != nullptr; }

  const T* diff_dst_;
  const T* residual_;
  Formula_ formula_;
};

// ---- What is summed. The lanes that an access leaves out add nothing, because their src is the
// pivot. ----

template <class T>
class GradientTerms {
 public:
  using Element = T;
  static constexpr bool prefetches = sizeof(T) < sizeof(float);

  explicit GradientTerms(const TileArgs& args)
      : src_(input<T>(args, Input::src)), diff_dst_(input<T>(args, Input::diff_dst)) {}

  template <class K, class Access>
  auto at(const Index i, const K& k, const Access& access) const {
    return evaluate(gradient_terms, k, access.read(src_ + i, pivot_of(k)),
                    access.read(diff_dst_ + i));
  }

  template <class Visit>
  void inputs(const Visit& visit) const {
    visit(src_);
    visit(diff_dst_);
  }

 private:
  const T* src_;
  const T* diff_dst_;
};

template <class T, class Diff, bool stores_diff = false>
class ActGradientTerms {
 public:
  using Element = T;
  static constexpr bool prefetches = true;

  explicit ActGradientTerms(const TileArgs& args)
      : src_(input<T>(args, Input::src)),
        diff_(args),
        stored_diff_(stores_diff ? output<T>(args, args.stored_diff) : nullptr),
        // The apply pass finds what is stored of planes in the cache.
        non_temporal_(args.non_temporal && args.order.columns && rows_are_aligned(args)) {}

  template <class K, class Access>
  auto at(const Index i, const K& k, const Access& access) const {
    const auto x = access.read(src_ + i, pivot_of(k));
    const auto d = diff_.at(i, k, access, x);
    if constexpr (stores_diff) access.write(stored_diff_ + i, d, non_temporal_);
    return evaluate(gradient_terms, k, x, d);
  }

  template <class Visit>
  void inputs(const Visit& visit) const {
    visit(src_);
    diff_.inputs(visit);
  }

 private:
  // Whether every row begins a cache line.
  bool rows_are_aligned(const TileArgs& args) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(stored_diff_);
    const Index row_bytes = args.order.row * static_cast<Index>(sizeof(T));
    return begin % cache_line == 0 && row_bytes % cache_line == 0;
  }

  const T* src_;
  Diff diff_;
  T* stored_diff_;
  bool non_temporal_;
};

template <class T>
class MomentTerms {
 public:
  using Element = T;
  static constexpr bool prefetches = sizeof(T) < sizeof(float);

  explicit MomentTerms(const TileArgs& args) : src_(input<T>(args, Input::src)) {}

  template <class K, class Access>
  auto at(const Index i, const K& k, const Access& access) const {
    return evaluate(moment_terms, k, access.read(src_ + i, pivot_of(k)));
  }

  template <class Visit>
  void inputs(const Visit& visit) const {
    visit(src_);
  }

 private:
  const T* src_;
};

// ---- What is written. ----

template <class T>
class GradientResult {
 public:
  using Element = T;

  explicit GradientResult(const TileArgs& args)
      : GradientResult(args, input<T>(args, Input::diff_dst)) {}
  // Of this gradient instead of diff_dst.
  GradientResult(const TileArgs& args, const T* const diff)
      : src_(input<T>(args, Input::src)),
        diff_(diff),
        diff_src_(output<T>(args, Output::diff_src)),
        batch_(args.config.statistics_kind == StatisticsKind::batch),
        prefetches_src_(batch_ || !args.order.columns),
        non_temporal_(args.non_temporal) {}

  const T* begin() const { return diff_src_; }

  template <class K, class Access>
  void write(const Index i, const K& k, const Access& access) const {
    const auto d = access.read(diff_ + i);
    const auto result = batch_ ? evaluate(batch_gradient, k, access.read(src_ + i), d)
                               : evaluate(frozen_gradient, k, d);
    access.write(diff_src_ + i, result, non_temporal_);
  }

  template <class Visit>
  void inputs(const Visit& visit) const {
    if (prefetches_src_) visit(src_);
    visit(diff_);
  }

 private:
  const T* src_;
  const T* diff_;
  T* diff_src_;
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

  explicit ActGradientResult(const TileArgs& args)
      : src_(input<T>(args, Input::src)),
        diff_(args),
        diff_src_(output<T>(args, Output::diff_src)),
        diff_residual_(output<T>(args, Output::diff_residual)),
        non_temporal_(args.non_temporal) {}

  const T* begin() const { return diff_src_; }

  template <class K, class Access>
  void write(const Index i, const K& k, const Access& access) const {
    const auto x = access.read(src_ + i);
    const auto d = diff_.at(i, k, access, x);
    if (diff_residual_ != nullptr) access.write(diff_residual_ + i, d, non_temporal_);
    access.write(diff_src_ + i, evaluate(batch_gradient, k, x, d), non_temporal_);
  }

  template <class Visit>
  void inputs(const Visit& visit) const {
    visit(src_);
    diff_.inputs(visit);
  }

 private:
  const T* src_;
  Diff diff_;
  T* diff_src_;
  T* diff_residual_;
  bool non_temporal_;
};

template <class T>
class NormalizedResult {
 public:
  using Element = T;

  explicit NormalizedResult(const TileArgs& args)
      : src_(input<T>(args, Input::src)),
        dst_(output<T>(args, Output::dst)),
        non_temporal_(args.non_temporal) {}

  const T* begin() const { return dst_; }

  template <class K, class Access>
  void write(const Index i, const K& k, const Access& access) const {
    access.write(dst_ + i, evaluate(normalized, k, access.read(src_ + i)), non_temporal_);
  }

  template <class Visit>
  void inputs(const Visit& visit) const {
    visit(src_);
  }

 private:
  const T* src_;
  T* dst_;
  bool non_temporal_;
};

template <class T, class Formula_>
class ActResult {
 public:
  using Element = T;

  explicit ActResult(const TileArgs& args)
      : src_(input<T>(args, Input::src)),
        residual_(input<T>(args, Input::residual)),
        dst_(output<T>(args, Output::dst)),
        formula_(args),
        non_temporal_(args.non_temporal) {}

  const T* begin() const { return dst_; }

  template <class K, class Access>
  void write(const Index i, const K& k, const Access& access) const {
    const auto x = access.read(src_ + i);
    const auto plain = [this](const Coefficients& c, const Vec xv) {
      return formula_.value(normalized(c, xv));
    };
    const auto with_residual = [this](const Coefficients& c, const Vec xv, const Vec residual) {
      return formula_.value(normalized(c, xv) + residual);
    };
    const auto result = residual_ != nullptr
                            ? evaluate(with_residual, k, x, access.read(residual_ + i))
                            : evaluate(plain, k, x);
    access.write(dst_ + i, result, non_temporal_);
  }

  template <class Visit>
  void inputs(const Visit& visit) const {
    visit(src_);
    if (residual_ != nullptr) visit(residual_);
  }

 private:
  const T* src_;
  const T* residual_;
  T* dst_;
  Formula_ formula_;
  bool non_temporal_;
};

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
