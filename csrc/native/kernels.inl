// The kernels, compiled once per instruction set by the kernels_*.cpp, which define ONEDSL_ISA.
// Everything that they are made of is in an unnamed namespace, and they use no standard container
// and no inline function that other files have a copy of: the linker would be free to take this
// file's copy, for an instruction set that the CPU may lack. tests/test_cpp.py looks for such.

#include "coefficients.inl"
#include "formulas.inl"
#include "kernels.hpp"
#include "reduce_columns.inl"
#include "reduce_planes.inl"
#include "simd.hpp"
#include "statistics.inl"
#include "write.inl"

namespace onedsl::native::ONEDSL_ISA {
namespace {

template <class Terms_>
void reduce(const Task& task, const Part& part, const PartialScratch& scratch) {
  if (task.order.columns) {
    reduce_columns<Terms_>(task, part, scratch);
  } else {
    reduce_planes<Terms_>(task, part, scratch);
  }
}

void fence() { _mm_sfence(); }

template <class T>
constexpr Kernels gradient{
    lanes, prepare_gradient<T>, reduce<GradientTerms<T>>, finish_gradient<T>, write_gradient<T>,
    fence};

template <class T, bool by_dst>
void reduce_masked(const Task& task, const Part& part, const PartialScratch& scratch) {
  if (task.order.columns) {
    reduce_columns<MaskedGradientTerms<T, by_dst, by_dst>>(task, part, scratch);
  } else {
    reduce_planes<MaskedGradientTerms<T, by_dst>>(task, part, scratch);
  }
}

template <class T, bool by_dst>
void write_masked(const Task& task, const Part& part) {
  if (task.reduce_writes_residual) {
    write<GradientResult<T, Statistics::batch>>(task, part);
  } else {
    write<MaskedGradientResult<T, by_dst>>(task, part);
  }
}

template <class T, bool by_dst>
constexpr Kernels masked_gradient{lanes,
                                  prepare_masked_gradient<T>,
                                  reduce_masked<T, by_dst>,
                                  finish_gradient<T>,
                                  write_masked<T, by_dst>,
                                  fence};

template <class T, class Result>
constexpr Kernels forward{
    lanes, prepare_statistics<T>, reduce<MomentTerms<T>>, finish_statistics<T>, write<Result>,
    fence};

template <class T>
const Kernels& kernels_of(const Variant variant) {
  switch (variant) {
    case Variant::gradient_by_src:
      return masked_gradient<T, false>;
    case Variant::gradient_by_dst:
      return masked_gradient<T, true>;
    case Variant::normalization:
      return forward<T, NormalizedResult<T>>;
    case Variant::normalization_and_relu:
      return forward<T, ReluResult<T>>;
    case Variant::gradient:
      break;
  }
  return gradient<T>;
}

}  // namespace

const Kernels& kernels(const DataType type, const Variant variant) {
  switch (type) {
    case DataType::bf16:
      return kernels_of<Bf16>(variant);
    case DataType::f16:
      return kernels_of<F16>(variant);
    case DataType::f32:
      break;
  }
  return kernels_of<float>(variant);
}

}  // namespace onedsl::native::ONEDSL_ISA
