#include "fork_guard.hpp"

#include <pthread.h>

#include <condition_variable>
#include <mutex>

#include "../core/no_destructor.hpp"

namespace onedsl::onednn {
namespace {

// Not a std::shared_mutex: it admits new readers while a writer waits, so that a fork could wait
// forever, and a child cannot unlock what a thread of its parent has locked.
struct State {
  std::mutex mutex;
  std::condition_variable changed;
  int holders = 0;  // threads that hold a guard
  int forks = 0;    // waiting or in progress
};

NoDestructor<State>& state() {
  static NoDestructor<State> instance;
  return instance;
}

// Guards of this thread. Only the first one waits for forks: a second one would wait for a fork
// that waits for the first.
thread_local int depth = 0;

void before_fork() {
  State& s = *state();
  std::unique_lock<std::mutex> lock(s.mutex);
  ++s.forks;
  s.changed.wait(lock, [&] { return s.holders == 0; });
  lock.release();  // stays locked until after the fork
}

void after_fork_in_parent() {
  State& s = *state();
  --s.forks;
  s.mutex.unlock();
  s.changed.notify_all();
}

// The child has one thread, which holds no guard.
void after_fork_in_child() { state().renew(); }

[[maybe_unused]] const int registered =
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);

}  // namespace

ForkGuard::ForkGuard() {
  if (depth++ > 0) return;
  State& s = *state();
  std::unique_lock<std::mutex> lock(s.mutex);
  s.changed.wait(lock, [&] { return s.forks == 0; });
  ++s.holders;
}

ForkGuard::~ForkGuard() {
  if (--depth > 0) return;
  State& s = *state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  if (--s.holders == 0 && s.forks > 0) s.changed.notify_all();
}

}  // namespace onedsl::onednn
