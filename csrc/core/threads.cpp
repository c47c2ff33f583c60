#include "threads.hpp"

#include <omp.h>
#include <pthread.h>

#include <algorithm>

namespace onedsl {
namespace {

// No atomic: written only in a newly forked child, while it has one thread.
int generation = 0;

[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, [] { generation += 1; });

}  // namespace

int max_threads() noexcept { return generation > 0 ? 1 : std::max(1, omp_get_max_threads()); }

int fork_generation() noexcept { return generation; }

ThreadLimit::ThreadLimit(const int num_threads) noexcept : before_(omp_get_max_threads()) {
  omp_set_num_threads(num_threads);
}

ThreadLimit::~ThreadLimit() { omp_set_num_threads(before_); }

}  // namespace onedsl
