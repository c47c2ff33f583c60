#pragma once

namespace onedsl::onednn {

// Held by a thread while it is inside of oneDNN. A fork waits until nobody is: oneDNN's own
// mutexes, locked by a thread that the child does not have, would stay locked there for ever.
class ForkGuard {
 public:
  ForkGuard();
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;
};

}  // namespace onedsl::onednn
