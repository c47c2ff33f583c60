// The kernels, compiled once per instruction set by kernels_*.cpp, which define ONEDSL_ISA.
//
// Everything here is in an unnamed namespace, and uses no standard container and no inline function
// that other files also compile: the linker could keep this file's copy, for an instruction set
// that the CPU lacks. tests/test_cpp.py checks the symbols.

#include <type_traits>

#include "activations.inl"
#include "copy.inl"
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
void reduce(const Task& task, const Tile& tile, const TileScratch& scratch) {
  if (task.order.columns) {
    reduce_columns<Terms_>(task, tile, scratch);
  } else {
    reduce_planes<Terms_>(task, tile, scratch);
  }
}

// See stores_diff() of run.cpp.
template <class T, class Diff>
void reduce_diff(const Task& task, const Tile& tile, const TileScratch& scratch) {
  if constexpr (sizeof(T) == sizeof(float) || Diff::is_mask) {
    if (task.stores_diff) {
      using Terms_ = ActGradientTerms<T, Diff, true>;
      if constexpr (std::is_same_v<Diff, ActDiff<T, Called>>) {
        return reduce<Terms_>(task, tile, scratch);
      } else {
        return reduce_columns<Terms_>(task, tile, scratch);
      }
    }
  }
  reduce<ActGradientTerms<T, Diff>>(task, tile, scratch);
}

template <class T, class Diff>
void write_diff(const Task& task, const Tile& tile) {
  if (task.stores_diff) {
    write<GradientResult<T>>(task, tile);
  } else {
    write<ActGradientResult<T, Diff>>(task, tile);
  }
}

// The derivative is read from dst, if the call has it. A mask that depends on src alone is not
// stored.
template <class T, class Formula_>
void reduce_act(const Task& task, const Tile& tile, const TileScratch& scratch) {
  if constexpr (Formula_::follows_from_dst) {
    if (input(task, Input::dst) != nullptr) {
      return reduce_diff<T, DiffByDst<T, Formula_>>(task, tile, scratch);
    }
  }
  if constexpr (Formula_::is_mask) {
    if (input(task, Input::residual) == nullptr) {
      return reduce<ActGradientTerms<T, ActDiff<T, Formula_, false>>>(task, tile, scratch);
    }
  }
  reduce_diff<T, ActDiff<T, Formula_>>(task, tile, scratch);
}

template <class T, class Formula_>
void write_act(const Task& task, const Tile& tile) {
  if constexpr (Formula_::follows_from_dst) {
    if (input(task, Input::dst) != nullptr)
      return write_diff<T, DiffByDst<T, Formula_>>(task, tile);
  }
  if constexpr (Formula_::is_mask) {
    if (input(task, Input::residual) == nullptr) {
      return write<ActGradientResult<T, ActDiff<T, Formula_, false>>>(task, tile);
    }
  }
  write_diff<T, ActDiff<T, Formula_>>(task, tile);
}

template <class T>
constexpr Kernels gradient{
    lanes,           splits_even_odd<T>,       prepare_gradient, reduce<GradientTerms<T>>,
    finish_gradient, write<GradientResult<T>>, copy_matrix};

template <class T, class Formula_>
constexpr Kernels act_gradient{lanes,
                               splits_even_odd<T>,
                               prepare_masked_gradient,
                               reduce_act<T, Formula_>,
                               finish_gradient,
                               write_act<T, Formula_>,
                               copy_matrix};

template <class T, class Result>
constexpr Kernels forward{
    lanes,          splits_even_odd<T>, prepare_moments<T>, reduce<MomentTerms<T>>,
    finish_moments, write<Result>,      copy_matrix};

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
const Kernels& act_kernels(const Operation operation) {
  if (is_forward(operation)) return forward<T, ActResult<T, Formula_>>;
  return act_gradient<T, Formula_>;
}

template <class T>
const Kernels& kernels_of(const Operation operation, const Activation activation) {
  switch (activation) {
    case Activation::none:
      if (is_forward(operation)) return forward<T, NormalizedResult<T>>;
      return gradient<T>;
    case Activation::relu:
      return act_kernels<T, PlainRelu>(operation);
    case Activation::leaky_relu:
      return act_kernels<T, LeakyRelu>(operation);
    case Activation::hardswish:
      return act_kernels<T, Hardswish>(operation);
    case Activation::silu:
    case Activation::gelu:
    case Activation::gelu_tanh:
      break;
  }
  return act_kernels<T, Called>(operation);
}

}  // namespace

const Kernels& kernels([[maybe_unused]] const DataType type, const Operation operation,
                       const Activation activation) {
#if !defined(__AVX512BF16__)
  if (type == DataType::f32) return kernels_of<float>(operation, activation);
  if (type == DataType::f16) return kernels_of<F16>(operation, activation);
#endif
  return kernels_of<Bf16>(operation, activation);
}

}  // namespace onedsl::native::ONEDSL_ISA
