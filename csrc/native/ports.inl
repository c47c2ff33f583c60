#pragma once

// The caller's memory. Null for absent inputs and outputs that are not wanted.

#include "kernels.hpp"

namespace onedsl::native::ONEDSL_ISA {
namespace {

template <class T = float>
const T* input(const Task& task, const Input port) {
  return static_cast<const T*>(task.memory.in[port]);
}

template <class T = float>
T* output(const Task& task, const Output port) {
  return static_cast<T*>(task.memory.out[port]);
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
