#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "../core/run_log.hpp"
#include "tensors.hpp"

// Calls of batch norm from PyTorch, for `onedsl.verbose` and `onedsl.torch.report`.
namespace onedsl::torch {

struct LoggedCall {
  bool is_forward;
  const char* computed;  // what onedsl computes, or null
  const char* reason;    // why PyTorch's own kernel computes the call instead, or null
  std::vector<std::int64_t> shape = {};     // of src
  std::vector<const void*> addresses = {};  // of the tensors: they identify the layer
  // A gradient gets the mean of its forward pass; in evaluation, this is the running mean.
  const void* source = nullptr;           // the mean of a gradient, the running mean otherwise
  std::vector<const void*> results = {};  // of a forward pass: its mean
};

// The part of the run log that has PyTorch's calls.
struct CallLog {
  std::atomic<bool> used = false;  // whether onedsl has computed any call
  void (*record)(const LoggedCall& call) = {};
};
inline CallLog call_log;

// Returns the address of a tensor, null if it has no memory.
inline const void* address_of(const Tensor& tensor) {
  const void* data = nullptr;
  return is_defined(tensor) && api->data(&tensor, &data) == 0 ? data : nullptr;
}

inline const void* address_of(const OptionalTensor& tensor) {
  return tensor ? address_of(*tensor) : nullptr;
}

template <class Other>
const void* address_of(const Other&) {  // a flag or a number
  return nullptr;
}

inline std::vector<std::int64_t> shape_of(const Tensor& tensor) {
  std::int64_t rank = 0;
  std::int64_t* sizes = nullptr;
  const bool found =
      is_defined(tensor) && api->rank(&tensor, &rank) == 0 && api->sizes(&tensor, &sizes) == 0;
  return found ? std::vector(sizes, sizes + rank) : std::vector<std::int64_t>();
}

// Logs a call. describe(call) sets the members that identify it.
template <class Describe>
void log_call(LoggedCall call, const Describe& describe) {
  if (call.computed != nullptr && !call_log.used.load(std::memory_order_relaxed)) {
    call_log.used = true;
  }
  if (!run_log.has_subscribers()) return;
  describe(call);
  call_log.record(call);
}

}  // namespace onedsl::torch
