#pragma once

#include "../core/threads.hpp"
#include "ffi_abi.hpp"

namespace onedsl::xla {

// XLA's thread pool. Its tasks need not run at the same time, so no share of a loop waits for
// another, and the caller computes the shares that no thread of the pool has begun.
class Pool final : public Threads {
 public:
  // Without a pool, calls run on the calling thread.
  Pool(const abi::Api& api, void* context) noexcept;
  int count() const noexcept override { return count_; }
  void run(Loops& loops, int workers) const override;

 private:
  bool schedule(abi::Task* task, void* data) const noexcept;
  // Returns whether XLA's call was successful.
  bool succeeded(abi::Error* error) const noexcept;

  const abi::Api& api_;
  void* context_;  // of the call
  int count_ = 1;
};

}  // namespace onedsl::xla
