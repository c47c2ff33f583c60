#pragma once

// The formulas, for the elements of a vector.

#include "kernels.hpp"
#include "pairs.hpp"
#include "simd.hpp"
#include "tables.inl"

namespace onedsl::native::ONEDSL_ISA {
namespace {

// What is summed of each element in its channel: a weight, and the weight times a distance from the
// pivot.
struct Terms {
  Vec weight;
  Vec distance;
};

struct PairTerms {
  Terms a;
  Terms b;
};

inline VecPair pair_of(const Vec a, const Vec b) { return {a, b}; }
inline PairTerms pair_of(const Terms& a, const Terms& b) { return {a, b}; }

// A formula for one vector, or for each of a pair.
template <class Formula_, class... Values>
inline auto apply(const Formula_& formula, const Coefficients& k, const Values&... values) {
  return formula(k, values...);
}
template <class Formula_, class... Values>
inline auto apply(const Formula_& formula, const PairCoefficients& k, const Values&... values) {
  // One after the other: a function's arguments would be evaluated last first, and memory read so.
  const auto a = formula(k.a, values.a...);
  const auto b = formula(k.b, values.b...);
  return pair_of(a, b);
}

inline Terms gradient_terms(const Coefficients& k, const Vec x, const Vec d) {
  return {d, x - k.pivot};
}
inline Terms moment_terms(const Coefficients& k, const Vec x) {
  const Vec distance = x - k.pivot;
  return {distance, distance};
}

// src - mean comes first: it costs no accuracy where the mean is large against the deviation.
inline Vec normalized(const Coefficients& k, const Vec x) {
  return multiply_add(x - k.mean, k.scale, k.beta);
}
inline Vec batch_gradient(const Coefficients& k, const Vec x, const Vec d) {
  return k.scale * subtract_product(d - k.shift, x - k.mean, k.slope);
}
inline Vec frozen_gradient(const Coefficients& k, const Vec d) { return k.scale * d; }

// Asks memory for what a formula is to read: its `inputs` call a function with each tensor.
template <Into into = Into::first_cache, class Formula_>
inline void prefetch(const Formula_& formula, const Index begin, const Index count) {
  formula.inputs([=](const auto* const tensor) { prefetch<into>(tensor + begin, count); });
}

// diff_dst where the ReLU's mask is open, else zero. The mask is that of dst; or, the same bits, it
// is made of what the forward pass rounded to dst.
template <class T, bool by_dst>
class MaskedDiff {
 public:
  MaskedDiff(const Task& task, const Index offset)
      : diff_dst_(static_cast<const T*>(task.tensors.diff_dst) + offset),
        dst_(by_dst ? static_cast<const T*>(task.tensors.dst) + offset : nullptr),
        zero_to_(broadcast(task.formula.relu.zero_to)),
        clip_from_(broadcast(task.formula.relu.clip_from)) {}

  template <class K, class Stretch, class Values>
  auto at(const Index i, const K& k, const Stretch& stretch, const Values& x) const {
    const auto d = stretch.read(diff_dst_ + i);
    if constexpr (by_dst) {
      const auto mask = [this](const Coefficients&, const Vec dv, const Vec y) {
        return where_open(dv, y, zero_to_, clip_from_);
      };
      return apply(mask, k, d, stretch.read(dst_ + i));
    } else {
      const auto mask = [this](const Coefficients& c, const Vec dv, const Vec xv) {
        return where_open(dv, normalized(c, xv), zero_to_, clip_from_);
      };
      return apply(mask, k, d, x);
    }
  }

  template <class Visit>
  void inputs(const Visit& visit) const {
    visit(diff_dst_);
    if constexpr (by_dst) visit(dst_);
  }

 private:
  const T* diff_dst_;
  const T* dst_;
  Vec zero_to_;
  Vec clip_from_;
};

// ---- What is summed. The elements are counted from the offset on; those that a stretch lacks add
// nothing, for their src is the pivot. ----

template <class T>
class GradientTerms {
 public:
  using Element = T;

  GradientTerms(const Task& task, const Index offset)
      : src_(static_cast<const T*>(task.tensors.src) + offset),
        diff_dst_(static_cast<const T*>(task.tensors.diff_dst) + offset) {}

  template <class K, class Stretch>
  auto at(const Index i, const K& k, const Stretch& stretch) const {
    return apply(gradient_terms, k, stretch.read(src_ + i, pivot_of(k)),
                 stretch.read(diff_dst_ + i));
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

template <class T, bool by_dst, bool may_write_residual = false>
class MaskedGradientTerms {
 public:
  using Element = T;

  MaskedGradientTerms(const Task& task, const Index offset)
      : src_(static_cast<const T*>(task.tensors.src) + offset),
        diff_(task, offset),
        diff_residual_(task.reduce_writes_residual
                           ? static_cast<T*>(task.tensors.diff_residual) + offset
                           : nullptr),
        non_temporal_(task.non_temporal && rows_are_aligned(task)) {}

  template <class K, class Stretch>
  auto at(const Index i, const K& k, const Stretch& stretch) const {
    const auto x = stretch.read(src_ + i, pivot_of(k));
    const auto d = diff_.at(i, k, stretch, x);
    if constexpr (may_write_residual) {
      if (diff_residual_ != nullptr) {
        if (non_temporal_) {
          stretch.write_non_temporal(diff_residual_ + i, d);
        } else {
          stretch.write(diff_residual_ + i, d);
        }
      }
    }
    return apply(gradient_terms, k, x, d);
  }

  template <class Visit>
  void inputs(const Visit& visit) const {
    visit(src_);
    diff_.inputs(visit);
  }

 private:
  // Whether every row begins a line of memory.
  bool rows_are_aligned(const Task& task) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(diff_residual_);
    const Index row_bytes = task.order.row * static_cast<Index>(sizeof(T));
    return begin % line_bytes == 0 && row_bytes % line_bytes == 0;
  }

  const T* src_;
  MaskedDiff<T, by_dst> diff_;
  T* diff_residual_;
  bool non_temporal_;
};

template <class T>
class MomentTerms {
 public:
  using Element = T;

  MomentTerms(const Task& task, const Index offset)
      : src_(static_cast<const T*>(task.tensors.src) + offset) {}

  template <class K, class Stretch>
  auto at(const Index i, const K& k, const Stretch& stretch) const {
    return apply(moment_terms, k, stretch.read(src_ + i, pivot_of(k)));
  }

  template <class Visit>
  void inputs(const Visit& visit) const {
    visit(src_);
  }

 private:
  const T* src_;
};

// ---- What is written. ----

template <class T, Statistics statistics>
class GradientResult {
 public:
  using Element = T;

  GradientResult(const Task& task, const Index offset)
      : src_(static_cast<const T*>(task.tensors.src) + offset),
        diff_dst_(static_cast<const T*>(task.reduce_writes_residual ? task.tensors.diff_residual
                                                                    : task.tensors.diff_dst) +
                  offset),
        diff_src_(static_cast<T*>(task.tensors.result) + offset) {}

  const T* begin() const { return diff_src_; }

  template <class K, class Stretch>
  void write(const Index i, const K& k, const Stretch& stretch) const {
    const auto d = stretch.read(diff_dst_ + i);
    if constexpr (statistics == Statistics::batch) {
      stretch.write(diff_src_ + i, apply(batch_gradient, k, stretch.read(src_ + i), d));
    } else {
      stretch.write(diff_src_ + i, apply(frozen_gradient, k, d));
    }
  }

  template <class Visit>
  void inputs(const Visit& visit) const {
    visit(src_);
    visit(diff_dst_);
  }

 private:
  const T* src_;
  const T* diff_dst_;
  T* diff_src_;
};

template <class T, bool by_dst>
class MaskedGradientResult {
 public:
  using Element = T;

  MaskedGradientResult(const Task& task, const Index offset)
      : src_(static_cast<const T*>(task.tensors.src) + offset),
        diff_(task, offset),
        diff_src_(static_cast<T*>(task.tensors.result) + offset),
        diff_residual_(task.tensors.diff_residual != nullptr
                           ? static_cast<T*>(task.tensors.diff_residual) + offset
                           : nullptr) {}

  const T* begin() const { return diff_src_; }

  template <class K, class Stretch>
  void write(const Index i, const K& k, const Stretch& stretch) const {
    const auto x = stretch.read(src_ + i);
    const auto d = diff_.at(i, k, stretch, x);
    if (diff_residual_ != nullptr) stretch.write(diff_residual_ + i, d);
    stretch.write(diff_src_ + i, apply(batch_gradient, k, x, d));
  }

  template <class Visit>
  void inputs(const Visit& visit) const {
    visit(src_);
    diff_.inputs(visit);
  }

 private:
  const T* src_;
  MaskedDiff<T, by_dst> diff_;
  T* diff_src_;
  T* diff_residual_;
};

template <class T>
class NormalizedResult {
 public:
  using Element = T;

  NormalizedResult(const Task& task, const Index offset)
      : src_(static_cast<const T*>(task.tensors.src) + offset),
        dst_(static_cast<T*>(task.tensors.result) + offset) {}

  const T* begin() const { return dst_; }

  template <class K, class Stretch>
  void write(const Index i, const K& k, const Stretch& stretch) const {
    stretch.write(dst_ + i, apply(normalized, k, stretch.read(src_ + i)));
  }

  template <class Visit>
  void inputs(const Visit& visit) const {
    visit(src_);
  }

 private:
  const T* src_;
  T* dst_;
};

template <class T>
class ReluResult {
 public:
  using Element = T;

  ReluResult(const Task& task, const Index offset)
      : src_(static_cast<const T*>(task.tensors.src) + offset),
        residual_(task.tensors.residual != nullptr
                      ? static_cast<const T*>(task.tensors.residual) + offset
                      : nullptr),
        dst_(static_cast<T*>(task.tensors.result) + offset),
        clip_(broadcast(task.formula.relu.clip)) {}

  const T* begin() const { return dst_; }

  template <class K, class Stretch>
  void write(const Index i, const K& k, const Stretch& stretch) const {
    const auto x = stretch.read(src_ + i);
    if (residual_ != nullptr) {
      const auto formula = [this](const Coefficients& c, const Vec xv, const Vec residual) {
        return relu(normalized(c, xv) + residual, clip_);
      };
      stretch.write(dst_ + i, apply(formula, k, x, stretch.read(residual_ + i)));
    } else {
      const auto formula = [this](const Coefficients& c, const Vec xv) {
        return relu(normalized(c, xv), clip_);
      };
      stretch.write(dst_ + i, apply(formula, k, x));
    }
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
  Vec clip_;
};

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
