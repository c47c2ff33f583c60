#pragma once

// The caller's memory. Null for absent inputs and outputs that are not wanted.

#include "kernels.hpp"

namespace onedsl::native::ONEDSL_ISA {
namespace {

template <class T = float>
const T* input(const TileArgs& args, const Input port) {
  return static_cast<const T*>(args.in[port]);
}

template <class T = float>
T* output(const TileArgs& args, const Output port) {
  return static_cast<T*>(args.out[port]);
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
