// The libgomp functions that the kernels call, implemented with std::thread for ThreadSanitizer.
//
// libgomp synchronizes threads by system calls that ThreadSanitizer does not track, so it reports
// false data races between the threads of a team. It tracks the synchronization below.

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
    const long generation = generation_;
    if (++waiting_ == count_) {
      waiting_ = 0;
      ++generation_;
      all_arrived_.notify_all();
    } else {
      all_arrived_.wait(lock, [&] { return generation_ != generation; });
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_arrived_;
  const int count_;
  int waiting_ = 0;
  long generation_ = 0;
};

struct Team {
  int size = 1;
  Barrier* barrier = nullptr;
};

thread_local Team team;
thread_local int thread_num = 0;
thread_local int max_threads = 1;
std::mutex critical;

}  // namespace

extern "C" {

void GOMP_parallel(void (*function)(void*), void* data, const unsigned threads, unsigned) {
  const int size = threads != 0 ? static_cast<int>(threads) : max_threads;
  Barrier barrier(size);
  const Team outer = team;
  std::vector<std::thread> others;
  for (int i = 1; i < size; ++i) {
    others.emplace_back([&, i] {
      team = {size, &barrier};
      thread_num = i;
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

int omp_get_thread_num() { return thread_num; }
int omp_get_num_threads() { return team.size; }
int omp_get_max_threads() { return max_threads; }
void omp_set_num_threads(const int count) { max_threads = count; }
}
