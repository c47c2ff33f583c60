#pragma once

namespace onedsl::onednn {

// Held by a thread while it calls oneDNN. A fork waits until no thread holds one: a mutex of oneDNN
// that another thread has locked would stay locked in the child forever. A thread may hold several.
class ForkGuard {
 public:
  ForkGuard();
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;
};

}  // namespace onedsl::onednn
