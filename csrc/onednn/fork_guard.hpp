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

// Held by a thread while it may free a kernel of oneDNN: while it compiles, which can evict another
// kernel from oneDNN's cache, or destroys what was compiled. A thread that has run kernels destroys
// objects of them when it ends, and oneDNN has a data race between the two. Threads that hold a
// ForkGuard may wait for this one.
class KernelGuard {
 public:
  KernelGuard();
  ~KernelGuard();
  KernelGuard(const KernelGuard&) = delete;
  KernelGuard& operator=(const KernelGuard&) = delete;
};

// Held by a thread while it runs kernels. In the first run, oneDNN makes objects that belong to the
// thread. When the thread ends and destroys them, forks and KernelGuards wait for it, and it waits
// for them.
class GuardedEnd {
 public:
  GuardedEnd();
  ~GuardedEnd();
  GuardedEnd(const GuardedEnd&) = delete;
  GuardedEnd& operator=(const GuardedEnd&) = delete;
};

}  // namespace onedsl::onednn
