#pragma once

namespace onedsl::onednn {

// A thread that has run kernels of oneDNN destroys objects of them when it ends, and oneDNN has a
// data race between that and the end of a kernel: two threads would free the same memory.

// Held by a thread while it may free a kernel: while it compiles, which can evict another kernel
// from oneDNN's cache, or destroys what was compiled.
class KernelGuard {
 public:
  KernelGuard();
  ~KernelGuard();
  KernelGuard(const KernelGuard&) = delete;
  KernelGuard& operator=(const KernelGuard&) = delete;
};

// Held by a thread while it runs kernels. In the first run, oneDNN makes objects that belong to the
// thread. When the thread ends and destroys them, KernelGuards wait for it, and it waits for them.
class GuardedEnd {
 public:
  GuardedEnd();
  ~GuardedEnd();
  GuardedEnd(const GuardedEnd&) = delete;
  GuardedEnd& operator=(const GuardedEnd&) = delete;
};

}  // namespace onedsl::onednn
