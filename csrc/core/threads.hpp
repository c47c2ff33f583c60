#pragma once

#include <cstdint>

namespace onedsl {

// One of the threads that share some work.
struct Worker {
  std::int64_t index = 0;
  std::int64_t workers = 1;
};

// The parallel loops of a call, which run one after the other: a loop begins when all shares of the
// one before have ended.
class Loops {
 public:
  static constexpr int none = -1;

  virtual int first() const noexcept = 0;
  // Runs a worker's share of a loop. The shares of a loop may run at the same time, in any order.
  virtual void run(int loop, const Worker& worker) = 0;
  // Returns the loop after this one. May be called by several threads at the same time.
  virtual int next(int loop) const noexcept = 0;
  // Whether next() is none, in any case.
  virtual bool is_last(int loop) const noexcept = 0;

 protected:
  ~Loops() = default;
};

// The threads that run the loops of a call. Whoever makes calls chooses them.
class Threads {
 public:
  virtual ~Threads() = default;
  // The largest number of workers.
  virtual int count() const noexcept = 0;
  // Calls loops.run() for up to `workers` workers, in the rounding mode of the caller.
  virtual void run(Loops& loops, int workers) const = 0;
};

// Runs all loops on the calling thread.
void run_on_this_thread(Loops& loops);

// Rounds, and flushes subnormal numbers, as another thread does, within a scope.
class RoundingMode {
 public:
  static unsigned int of_this_thread() noexcept;
  explicit RoundingMode(unsigned int mode) noexcept;
  ~RoundingMode();
  RoundingMode(const RoundingMode&) = delete;
  RoundingMode& operator=(const RoundingMode&) = delete;

 private:
  unsigned int own_;
};

// Returns the number of threads for a call: OpenMP's settings (OMP_NUM_THREADS, OMP_THREAD_LIMIT,
// OMP_MAX_ACTIVE_LEVELS), or one in a forked child. The threads of libgomp's team do not survive a
// fork, and libgomp would wait for them forever.
int max_threads() noexcept;

// OpenMP's team. A parallel region always has all of its threads, and those without work pass
// through: libgomp ends the threads that a smaller team does not need, and creates them again for
// the next region of any library.
class OpenMPThreads final : public Threads {
 public:
  explicit OpenMPThreads(const int count = max_threads()) noexcept : count_(count) {}
  int count() const noexcept override { return count_; }
  void run(Loops& loops, int workers) const override;

 private:
  int count_;
};

}  // namespace onedsl
