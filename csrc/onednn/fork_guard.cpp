#include "fork_guard.hpp"

#include <pthread.h>

#include <condition_variable>
#include <mutex>

#include "../core/no_destructor.hpp"

namespace onedsl::onednn {
namespace {

// Not a std::shared_mutex: it lets readers in before a writer that waits, so that a fork might wait
// for ever; and a child could not unlock what its parent's thread has locked.
struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  int inside = 0;
  int forks = 0;  // that wait, or go on
};

NoDestructor<Gate>& gate() {
  static NoDestructor<Gate> made;
  return made;
}

void before_fork() {
  Gate& g = *gate();
  std::unique_lock<std::mutex> lock(g.mutex);
  ++g.forks;
  g.changed.wait(lock, [&] { return g.inside == 0; });
  lock.release();  // stays locked until after the fork
}

void after_fork_in_parent() {
  Gate& g = *gate();
  --g.forks;
  g.mutex.unlock();
  g.changed.notify_all();
}

// The child has one thread: nobody is inside, and nobody waits.
void after_fork_in_child() { gate().renew(); }

[[maybe_unused]] const int registered =
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);

}  // namespace

ForkGuard::ForkGuard() {
  Gate& g = *gate();
  std::unique_lock<std::mutex> lock(g.mutex);
  g.changed.wait(lock, [&] { return g.forks == 0; });
  ++g.inside;
}

ForkGuard::~ForkGuard() {
  Gate& g = *gate();
  const std::lock_guard<std::mutex> lock(g.mutex);
  if (--g.inside == 0 && g.forks > 0) g.changed.notify_all();
}

}  // namespace onedsl::onednn
