#include "threads.hpp"

#include <emmintrin.h>
#include <omp.h>
#include <pthread.h>

#include <algorithm>

namespace onedsl {
namespace {

// No atomic: written only in a newly forked child, while it has one thread.
bool is_forked = false;

[[maybe_unused]] const int fork_handler =
    pthread_atfork(nullptr, nullptr, [] { is_forked = true; });

}  // namespace

void run_on_this_thread(Loops& loops) {
  for (int loop = loops.first(); loop != Loops::none; loop = loops.next(loop)) loops.run(loop, {});
}

unsigned int RoundingMode::of_this_thread() noexcept { return _mm_getcsr(); }
RoundingMode::RoundingMode(const unsigned int mode) noexcept : own_(_mm_getcsr()) {
  _mm_setcsr(mode);
}
RoundingMode::~RoundingMode() { _mm_setcsr(own_); }

int max_threads() noexcept {
  if (is_forked || omp_get_active_level() >= omp_get_max_active_levels()) return 1;
  return std::max(1, std::min(omp_get_max_threads(), omp_get_thread_limit()));
}

void OpenMPThreads::run(Loops& loops, const int workers) const {
  if (workers <= 1) return run_on_this_thread(loops);
  const unsigned int mode = RoundingMode::of_this_thread();
#pragma omp parallel
  {
    const RoundingMode same(mode);
    const Worker worker{omp_get_thread_num(), std::min(omp_get_num_threads(), workers)};
    for (int loop = loops.first(); loop != Loops::none; loop = loops.next(loop)) {
      if (worker.index < worker.workers) loops.run(loop, worker);
      if (loops.is_last(loop)) break;
#pragma omp barrier
    }
  }
}

}  // namespace onedsl
