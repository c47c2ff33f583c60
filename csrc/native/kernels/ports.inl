#pragma once

// The caller's memory. Null for absent inputs and outputs that are not wanted.

#include "kernels.hpp"
#include "vector.hpp"

namespace onedsl::native::ONEDSL_ISA {
namespace {

// The values of one per channel.
inline const float* input(const KernelArgs& args, const Input port) {
  return static_cast<const float*>(args.in[port]);
}
inline float* output(const KernelArgs& args, const Output port) {
  return static_cast<float*>(args.out[port]);
}

// A tensor from one of its planes or rows on.
template <class T>
class Tensor {
 public:
  Tensor() = default;
  Tensor(T* const data, const Pitch& pitch, const Index ahead)
      : data_(data), pitch_(pitch), ahead_(ahead) {}

  explicit operator bool() const { return data_ != nullptr; }
  T* at(const Index i) const { return data_ + i; }
  T* data() const { return data_; }
  Index position_pitch() const { return pitch_.position; }
  Index ahead() const { return ahead_; }

  // Moves to another position and channel. The distances of absent tensors are 0.
  void move(const Index positions, const Index channels) {
    data_ += positions * pitch_.position + channels * pitch_.channel;
  }

 private:
  T* data_ = nullptr;
  Pitch pitch_;
  Index ahead_ = 0;  // the distance to what is prefetched
};

// Return the distance to the elements of columns that are prefetched. Where positions are no
// neighbors, these are the same columns of a later position.
template <class T>
Index ahead_of(const KernelArgs& args, const Index position_pitch) {
  const Index position = args.order.channels * args.order.inner;
  if (position_pitch == position) return prefetch_distance<T>;
  const Index positions = prefetch_distance<T> / position;
  return (positions > 1 ? positions : 1) * position_pitch;
}

template <class T>
Tensor<T> tensor_at(const KernelArgs& args, T* const data, const Pitch& pitch) {
  return {data, pitch, ahead_of<T>(args, pitch.position)};
}
template <class T>
Tensor<const T> tensor(const KernelArgs& args, const Input port) {
  return tensor_at(args, static_cast<const T*>(args.in[port]), args.pitches->in[port]);
}
template <class T>
Tensor<T> tensor(const KernelArgs& args, const Output port) {
  return tensor_at(args, static_cast<T*>(args.out[port]), args.pitches->out[port]);
}

// Return a formula of the elements of another position and channel.
template <class Formula_>
Formula_ moved(Formula_ formula, const Index positions, const Index channels) {
  formula.move(positions, channels);
  return formula;
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
