// The kernels, compiled once per instruction set by kernels_*.cpp, which define ONEDSL_ISA.
//
// Everything here is in an unnamed namespace, and uses no standard container and no inline function
// that other files also compile: the linker could keep this file's copy, for an instruction set
// that the CPU lacks. tests/test_cpp.py checks the symbols.

#include <type_traits>

#include "activations.inl"
#include "formulas.inl"
#include "forward_moments.inl"
#include "gradient_sums.inl"
#include "kernels.hpp"
#include "ports.inl"
#include "reduce_columns.inl"
#include "reduce_planes.inl"
#include "vector.hpp"
#include "write.inl"

namespace onedsl::native::ONEDSL_ISA {
namespace {

template <class Terms_>
void reduce(const KernelArgs& args, const Tile& tile, const TileScratch& scratch) {
  if (args.order.columns) {
    reduce_columns<Terms_>(args, tile, scratch);
  } else {
    reduce_planes<Terms_>(args, tile, scratch);
  }
}

template <class Terms_, class Result>
constexpr PassKernels pass_kernels{reduce<Terms_>, write<Result>};

// The apply pass of storing kernels.
template <class T>
Tensor<const T> stored_diff(const KernelArgs& args) {
  const auto* const data = static_cast<const T*>(args.out[args.stored_diff]);
  return tensor_at(args, data, args.pitches->out[args.stored_diff]);
}
template <class T>
void write_stored(const KernelArgs& args, const Tile& tile) {
  write(args, tile, GradientResult<T>(args, stored_diff<T>(args)));
}

// Whether there are kernels that store the gradient of an activation. A mask rounds nothing; the
// other gradients would be rounded to a 16-bit type.
template <class T, class Diff>
constexpr bool can_store = Diff::may_be_stored && (sizeof(T) == sizeof(float) || Diff::is_mask);

template <class T, class Diff>
constexpr PassKernels storing_columns() {
  if constexpr (can_store<T, Diff>) {
    return {reduce_columns<ActGradientTerms<T, Diff, true>>, write_stored<T>};
  }
  return {};
}

// The inputs of planes stay in cache from one pass to the next, so only long formulas gain: writing
// both results with non-temporal stores is the least traffic.
template <class T, class Diff>
constexpr PassKernels storing_planes() {
  if constexpr (can_store<T, Diff> && std::is_same_v<Diff, ActDiff<T, Called>>) {
    return {reduce_planes<ActGradientTerms<T, Diff, true>>, write_stored<T>};
  }
  return {};
}

template <class T>
constexpr Kernels gradient{lanes,
                           splits_even_odd<T>,
                           prepare_gradient,
                           pass_kernels<GradientTerms<T>, GradientResult<T>>,
                           {},
                           {},
                           finish_gradient};

template <class T, class Diff>
constexpr Kernels act_gradient{lanes,
                               splits_even_odd<T>,
                               prepare_masked_gradient,
                               pass_kernels<ActGradientTerms<T, Diff>, ActGradientResult<T, Diff>>,
                               storing_columns<T, Diff>(),
                               storing_planes<T, Diff>(),
                               finish_gradient};

template <class T, class Result>
constexpr Kernels forward{
    lanes, splits_even_odd<T>, prepare_moments<T>, pass_kernels<MomentTerms<T>, Result>, {},
    {},    finish_moments};

constexpr bool is_forward(const Operation operation) {
  return operation == Operation::forward_training || operation == Operation::act_forward_training;
}
// Not signature_of(): the code of an inline function of csrc/core could be that of this file's
// instruction set for all others.
static_assert([] {
  for (std::size_t i = 0; i < signatures::all.size(); ++i) {
    if (is_forward(static_cast<Operation>(i)) != signatures::all[i].is_forward()) return false;
  }
  return true;
}());

template <class T, class Formula_>
const Kernels& act_kernels(const KernelKey& key) {
  if (is_forward(key.operation)) return forward<T, ActResult<T, Formula_>>;
  if constexpr (Formula_::follows_from_dst) {
    if (key.derivative == DerivativeSource::dst) return act_gradient<T, DiffByDst<T, Formula_>>;
  }
  if constexpr (Formula_::is_mask) {
    if (key.derivative == DerivativeSource::src) {
      return act_gradient<T, ActDiff<T, Formula_, false>>;
    }
  }
  return act_gradient<T, ActDiff<T, Formula_>>;
}

template <class T>
const Kernels& kernels_of(const KernelKey& key) {
  switch (key.activation) {
    case Activation::none:
      if (is_forward(key.operation)) return forward<T, NormalizedResult<T>>;
      return gradient<T>;
    case Activation::relu:
      return act_kernels<T, PlainRelu>(key);
    case Activation::leaky_relu:
      return act_kernels<T, LeakyRelu>(key);
    case Activation::hardswish:
      return act_kernels<T, Hardswish>(key);
    case Activation::silu:
    case Activation::gelu:
    case Activation::gelu_tanh:
      break;
  }
  return act_kernels<T, Called>(key);
}

}  // namespace

const Kernels& kernels(const KernelKey& key) {
#if !defined(__AVX512BF16__)
  if (key.type == DataType::f32) return kernels_of<float>(key);
  if (key.type == DataType::f16) return kernels_of<F16>(key);
#endif
  return kernels_of<Bf16>(key);
}

}  // namespace onedsl::native::ONEDSL_ISA
