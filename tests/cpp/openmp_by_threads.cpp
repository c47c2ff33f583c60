// What the kernels use of OpenMP, by the standard's threads, for ThreadSanitizer.
//
// libgomp waits and wakes by system calls that ThreadSanitizer does not see, and so takes every two
// threads of a team for racing. With these functions in libgomp's place it sees who waits for whom,
// and there are no false alarms to be suppressed.

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace {

class Barrier {
 public:
  explicit Barrier(const int count) : count_(count) {}
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    const long turn = turn_;
    if (++waiting_ == count_) {
      waiting_ = 0;
      ++turn_;
      all_here_.notify_all();
    } else {
      all_here_.wait(lock, [&] { return turn_ != turn; });
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  const int count_;
  int waiting_ = 0;
  long turn_ = 0;
};

struct Team {
  int size = 1;
  Barrier* barrier = nullptr;
};

thread_local Team team;
thread_local int number = 0;
thread_local int most = 1;
std::mutex critical;

}  // namespace

extern "C" {

void GOMP_parallel(void (*function)(void*), void* data, const unsigned threads, unsigned) {
  const int size = threads != 0 ? static_cast<int>(threads) : most;
  Barrier barrier(size);
  const Team outer = team;
  std::vector<std::thread> others;
  for (int i = 1; i < size; ++i) {
    others.emplace_back([&, i] {
      team = {size, &barrier};
      number = i;
      function(data);
    });
  }
  team = {size, &barrier};
  function(data);
  for (std::thread& other : others) other.join();
  team = outer;
}

void GOMP_barrier() {
  if (team.barrier != nullptr) team.barrier->wait();
}
void GOMP_critical_start() { critical.lock(); }
void GOMP_critical_end() { critical.unlock(); }

int omp_get_thread_num() { return number; }
int omp_get_num_threads() { return team.size; }
int omp_get_max_threads() { return most; }
void omp_set_num_threads(const int count) { most = count; }
}
