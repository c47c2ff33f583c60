#pragma once

namespace onedsl {

// Threads that a new plan will use: OpenMP's setting, and one in a forked child. A forked child
// has lost the team that libgomp still believes in, and a parallel region there hangs for ever.
int max_threads() noexcept;

// Counts the forks between the first process and this one. Plans of another generation are void.
int fork_generation() noexcept;

// Sets OpenMP's thread count for the calling thread, and restores it.
class ThreadLimit {
 public:
  explicit ThreadLimit(int num_threads) noexcept;
  ~ThreadLimit();
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

 private:
  int before_;
};

}  // namespace onedsl
