#pragma once

#include <oneapi/dnnl/dnnl.hpp>

#include "../core/types.hpp"
#include "backend.hpp"

namespace onedsl::onednn {

// The gradient with frozen statistics, by the primitive batch_normalization_backward with
// use_global_stats: the Graph API has no op for it.
class FrozenPrimitive final : public Executable {
 public:
  // dims are (N, C, H, W) in both memory orders, (N, H, W, C) and (N, C, H, W). `sums`: whether to
  // compute diff_gamma and diff_beta.
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
