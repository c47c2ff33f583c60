#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "../core/ports.hpp"
#include "../native/run.hpp"
#include "../onednn/graph_view.hpp"
#include "key.hpp"

namespace onedsl {

namespace onednn {
class Backend;
}

// Runs one problem on one backend. A plan holds no arrays of a caller, and any number of threads
// may execute it at the same time.
class Plan {
 public:
  // Throws UnsupportedError if the backend of the key cannot run the problem.
  explicit Plan(const PlanKey& key);
  ~Plan();
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  // The statistics have the key's type. Ports do not overlap, except that in_place_output of the
  // signature may be exactly in_place_input.
  void execute(const Ports& ports) const;

  const PlanKey& key() const noexcept { return key_; }
  const char* backend() const noexcept { return onednn_ ? "onednn" : "native"; }
  std::string implementation() const;  // a description for users
  std::size_t bytes() const noexcept;  // of memory held, approximately

  // For inspection; empty or nullopt if the other backend runs, or nothing does.
  onednn::Nodes graph() const;
  std::optional<native::KernelInfo> kernel_info() const;

 private:
  void run(const Ports& ports) const;  // statistics in f32
  void write_empty(const Ports& ports) const;

  PlanKey key_;
  std::unique_ptr<onednn::Backend> onednn_;  // null: onedsl's kernels run
};

}  // namespace onedsl
