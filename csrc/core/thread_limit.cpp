#include "thread_limit.hpp"

#include <omp.h>

namespace onedsl {

const OpenMP openmp{&omp_get_max_threads, &omp_set_num_threads, &omp_get_dynamic, &omp_set_dynamic};

ThreadLimit::ThreadLimit(const int num_threads, const OpenMP& library) noexcept
    : library_(library), before_(library.get_max_threads()), was_dynamic_(library.get_dynamic()) {
  library.set_num_threads(num_threads);
  library.set_dynamic(0);
}

ThreadLimit::~ThreadLimit() {
  library_.set_num_threads(before_);
  library_.set_dynamic(was_dynamic_);
}

}  // namespace onedsl
