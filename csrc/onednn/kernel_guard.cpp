#include "kernel_guard.hpp"

#include <pthread.h>

namespace onedsl::onednn {
namespace {

// Threads that end write, KernelGuards read.
constexpr pthread_rwlock_t unlocked = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
pthread_rwlock_t ends = unlocked;

// A forked child does not have the thread that may have locked it.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { ends = unlocked; });

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

KernelGuard::KernelGuard() { pthread_rwlock_rdlock(&ends); }

KernelGuard::~KernelGuard() { pthread_rwlock_unlock(&ends); }

GuardedEnd::GuardedEnd() { [[maybe_unused]] thread_local const MadeBefore object; }

GuardedEnd::~GuardedEnd() { [[maybe_unused]] thread_local const MadeAfter object; }

}  // namespace onedsl::onednn
