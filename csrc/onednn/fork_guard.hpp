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

// Held by a thread while it runs a compiled partition: its first run makes objects of oneDNN that
// lock a mutex of oneDNN when the thread ends and destroys them. A fork waits for that, too.
class ThreadEndGuard {
 public:
  ThreadEndGuard();
  ~ThreadEndGuard();
  ThreadEndGuard(const ThreadEndGuard&) = delete;
  ThreadEndGuard& operator=(const ThreadEndGuard&) = delete;
};

}  // namespace onedsl::onednn
