// The kernels, compiled once per instruction set by the kernels_*.cpp, which define ONEDSL_ISA.
// Everything that they are made of is in an unnamed namespace, and they use no standard container
// and no inline function that other files have a copy of: the linker would be free to take this
// file's copy, for an instruction set that the CPU may lack. tests/test_cpp.py looks for such.

#include "coefficients.inl"
#include "kernels.hpp"
#include "reduce.inl"
#include "simd.hpp"
#include "write.inl"

namespace onedsl::native::ONEDSL_ISA {
namespace {

void fence() { _mm_sfence(); }

template <class T>
constexpr Kernels kernels_of{lanes, fill_pivots<T>, reduce<T>, finish<T>, write<T>, fence};

}  // namespace

const Kernels& kernels(const DataType type) {
  switch (type) {
    case DataType::bf16:
      return kernels_of<Bf16>;
    case DataType::f16:
      return kernels_of<F16>;
    case DataType::f32:
      break;
  }
  return kernels_of<float>;
}

}  // namespace onedsl::native::ONEDSL_ISA
