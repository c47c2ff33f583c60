// The kernels, compiled once per instruction set by kernels_*.cpp, which define ONEDSL_ISA.
//
// Everything here is in an unnamed namespace, and uses no standard container and no inline function
// that other files also compile: the linker could keep this file's copy, for an instruction set
// that the CPU lacks. tests/test_cpp.py checks the symbols.

#include "copy.inl"
#include "formulas.inl"
#include "forward_moments.inl"
#include "gradient_sums.inl"
#include "kernels.hpp"
#include "memory.inl"
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

template <class T>
void reduce_masked(const Task& task, const Tile& tile, const TileScratch& scratch) {
  if (task.reduce_writes_residual) {
    reduce_columns<MaskedGradientTerms<T, true, true>>(task, tile, scratch);
  } else if (input(task, Input::dst) != nullptr) {
    reduce<MaskedGradientTerms<T, true>>(task, tile, scratch);
  } else {
    reduce<MaskedGradientTerms<T, false>>(task, tile, scratch);
  }
}

template <class T>
void write_masked(const Task& task, const Tile& tile) {
  if (task.reduce_writes_residual) {
    write<GradientResult<T>>(task, tile);
  } else if (input(task, Input::dst) != nullptr) {
    write<MaskedGradientResult<T, true>>(task, tile);
  } else {
    write<MaskedGradientResult<T, false>>(task, tile);
  }
}

template <class T>
constexpr Kernels gradient{
    lanes,           splits_even_odd<T>,       prepare_gradient, reduce<GradientTerms<T>>,
    finish_gradient, write<GradientResult<T>>, copy_block};

template <class T>
constexpr Kernels masked_gradient{
    lanes,           splits_even_odd<T>, prepare_masked_gradient, reduce_masked<T>, finish_gradient,
    write_masked<T>, copy_block};

template <class T, class Result>
constexpr Kernels forward{
    lanes,          splits_even_odd<T>, prepare_moments<T>, reduce<MomentTerms<T>>,
    finish_moments, write<Result>,      copy_block};

template <class T>
const Kernels& kernels_of(const Operation operation) {
  switch (operation) {
    case Operation::relu_training_backward:
      return masked_gradient<T>;
    case Operation::forward_training:
      return forward<T, NormalizedResult<T>>;
    case Operation::relu_forward_training:
      return forward<T, ReluResult<T>>;
    case Operation::training_backward:
      break;
  }
  return gradient<T>;
}

}  // namespace

const Kernels& kernels([[maybe_unused]] const DataType type, const Operation operation) {
#if !defined(__AVX512BF16__)
  if (type == DataType::f32) return kernels_of<float>(operation);
  if (type == DataType::f16) return kernels_of<F16>(operation);
#endif
  return kernels_of<Bf16>(operation);
}

}  // namespace onedsl::native::ONEDSL_ISA
