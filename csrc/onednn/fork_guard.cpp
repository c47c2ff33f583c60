#include "fork_guard.hpp"

#include <pthread.h>

#include <cstdlib>

#include "engine.hpp"

namespace onedsl::onednn {
namespace {

// Calls of oneDNN read, forks write. New readers wait while a writer waits, so that a fork need not
// wait for more than the calls in progress; a std::shared_mutex does not promise that.
constexpr pthread_rwlock_t unlocked = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
pthread_rwlock_t calls = unlocked;
// Threads that end write, and so do forks; KernelGuards read. Not the lock above: that stays locked
// at process exit, which may wait for the end of threads.
pthread_rwlock_t ends = unlocked;

// Guards of this thread. Only the first one locks: a second one would wait for a fork that waits
// for the first.
thread_local int depth = 0;
// Not if this thread is in the process's exit and has locked the calls for good.
thread_local bool is_locked = false;

// The child cannot unlock what a thread of its parent has locked. It has one thread, which holds no
// guard.
[[maybe_unused]] const int registered = [] {
  // Intel's OpenMP registers its own handlers at its first use. A fork calls the latest ones first:
  // these here must wait for calls before Intel's lock what the calls need.
  openmp_of_onednn().get_max_threads();
  // At process exit it ends its threads, also those of a daemon thread's call: let calls end first.
  std::atexit([] { pthread_rwlock_wrlock(&calls); });
  return pthread_atfork(
      [] {
        pthread_rwlock_wrlock(&calls);
        pthread_rwlock_wrlock(&ends);
      },
      [] {
        pthread_rwlock_unlock(&ends);
        pthread_rwlock_unlock(&calls);
      },
      [] { calls = ends = unlocked; });
}();

// A thread destroys first what was made last.
thread_local bool ending = false;
struct MadeBefore {
  ~MadeBefore() {
    if (ending) pthread_rwlock_unlock(&ends);
  }
};
struct MadeAfter {
  ~MadeAfter() { ending = pthread_rwlock_wrlock(&ends) == 0; }
};

}  // namespace

ForkGuard::ForkGuard() {
  if (depth++ == 0) is_locked = pthread_rwlock_rdlock(&calls) == 0;
}

ForkGuard::~ForkGuard() {
  if (--depth == 0 && is_locked) pthread_rwlock_unlock(&calls);
}

KernelGuard::KernelGuard() { pthread_rwlock_rdlock(&ends); }

KernelGuard::~KernelGuard() { pthread_rwlock_unlock(&ends); }

GuardedEnd::GuardedEnd() { [[maybe_unused]] thread_local const MadeBefore object; }

GuardedEnd::~GuardedEnd() { [[maybe_unused]] thread_local const MadeAfter object; }

}  // namespace onedsl::onednn
