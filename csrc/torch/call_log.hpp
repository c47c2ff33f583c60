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
};

// The part of the run log that has PyTorch's calls.
struct CallLog {
  std::atomic<bool> used = false;  // whether onedsl has computed any call
  void (*record)(const LoggedCall& call) = {};
};
inline CallLog call_log;

inline void add(LoggedCall& call, const Tensor& tensor) {
  bool defined = false;
  std::int64_t rank = 0;
  std::int64_t* sizes = nullptr;
  const void* data = nullptr;
  // No error is raised here: PyTorch's own kernel raises it.
  if (api->is_defined(&tensor, &defined) != 0 || !defined) return;
  if (call.shape.empty() && api->rank(&tensor, &rank) == 0 && api->sizes(&tensor, &sizes) == 0) {
    call.shape.assign(sizes, sizes + rank);
  }
  if (api->data(&tensor, &data) == 0) call.addresses.push_back(data);
}

inline void add(LoggedCall& call, const OptionalTensor& tensor) {
  if (tensor) add(call, *tensor);
}

template <class Other>
void add(LoggedCall&, const Other&) {}  // a flag or a number

// The first argument that is a tensor has src's shape.
template <class... Arguments>
void log_call(LoggedCall call, const Arguments&... arguments) {
  if (call.computed != nullptr && !call_log.used.load(std::memory_order_relaxed)) {
    call_log.used = true;
  }
  if (!run_log.has_subscribers()) return;
  (add(call, arguments), ...);
  call_log.record(call);
}

}  // namespace onedsl::torch
