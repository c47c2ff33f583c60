#pragma once

namespace onedsl {

// Functions of an OpenMP library.
struct OpenMP {
  int (*get_max_threads)();
  void (*set_num_threads)(int);
  int (*get_dynamic)();
  void (*set_dynamic)(int);
};
// The library of the native kernels.
extern const OpenMP openmp;

// Sets OpenMP's number of threads for the calling thread within a scope, also if OMP_DYNAMIC lets
// OpenMP use fewer. No more than max_threads() (threads.hpp) are available.
class ThreadLimit {
 public:
  explicit ThreadLimit(int num_threads, const OpenMP& library = openmp) noexcept;
  ~ThreadLimit();
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

 private:
  const OpenMP& library_;
  int before_, was_dynamic_;
};

}  // namespace onedsl
