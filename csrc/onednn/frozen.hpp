#pragma once

#include <oneapi/dnnl/dnnl.hpp>

#include "../core/types.hpp"
#include "graph.hpp"

namespace onedsl::onednn {

// The gradient for frozen statistics, which the Graph API has no op for: the primitive
// batch_normalization_backward with use_global_stats computes it.
class FrozenPrimitive final : public Executable {
 public:
  // dims are (N, C, H, W) whatever the memory order, which is (N, H, W, C) or (N, C, H, W).
  FrozenPrimitive(const dnnl::memory::dims& dims, bool channels_last, DataType data, float epsilon,
                  bool sums);
  void execute(const Ports& ports) override;

 private:
  dnnl::stream stream_;
  dnnl::batch_normalization_backward primitive_;
  dnnl::memory::desc data_;
  dnnl::memory::desc channels_;
};

}  // namespace onedsl::onednn
