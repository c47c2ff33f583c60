#include "pool.hpp"

#include <emmintrin.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>

namespace onedsl::xla {
namespace {

// Whether XLA's table of functions has the pool's.
bool has_pool(const abi::Api& api) noexcept { return api.size >= sizeof(abi::Api); }

// A loop whose shares several threads compute. Tasks of the pool may begin after it has ended, so
// that the caller and each task own it. It is the only memory of a loop, allocated before its first
// task: nothing fails while tasks use the memory of the call.
class SharedLoop {
 public:
  SharedLoop(Loops& loops, const int loop, const int workers) noexcept
      : loops_(loops), loop_(loop), workers_(workers), unfinished_(workers) {}

  void add_owner() noexcept { ++owners_; }
  void remove_owner() noexcept {
    if (--owners_ == 0) delete this;
  }

  // Computes shares until all have been begun.
  void work() {
    for (std::int64_t i = next_++; i < workers_; i = next_++) {
      loops_.run(loop_, {i, workers_});
      if (--unfinished_ > 0) continue;
      const std::lock_guard lock(mutex_);
      ended_.notify_one();
    }
  }

  void work_in_pool() {
    const RoundingMode same(mode_);
    work();
  }

  void wait() {
    // Shares are of equal lengths, so the others end soon.
    for (int i = 0; i < 1000 && unfinished_ > 0; ++i) _mm_pause();
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return unfinished_ == 0; });
  }

 private:
  Loops& loops_;
  const int loop_;
  const int workers_;
  const unsigned int mode_ = RoundingMode::of_this_thread();
  std::atomic<std::int64_t> owners_ = 1;
  std::atomic<std::int64_t> next_ = 0;
  std::atomic<std::int64_t> unfinished_;
  std::mutex mutex_;
  std::condition_variable ended_;
};

struct RemoveOwner {
  void operator()(SharedLoop* const loop) const noexcept { loop->remove_owner(); }
};
using Handle = std::unique_ptr<SharedLoop, RemoveOwner>;

void run_task(void* const data) {
  const Handle handle(static_cast<SharedLoop*>(data));
  handle->work_in_pool();
}

}  // namespace

Pool::Pool(const abi::Api& api, void* const context) noexcept : api_(api), context_(context) {
  if (!has_pool(api)) return;
  std::int64_t count = 0;
  abi::NumThreadsArguments arguments = {sizeof arguments, nullptr, context, &count};
  if (!succeeded(api.num_threads(&arguments))) return;
  constexpr std::int64_t most = std::numeric_limits<int>::max();
  count_ = static_cast<int>(std::clamp<std::int64_t>(count, 1, most));
}

bool Pool::succeeded(abi::Error* const error) const noexcept {
  if (error == nullptr) return true;
  abi::DestroyArguments arguments = {sizeof arguments, nullptr, error};
  api_.destroy_error(&arguments);
  return false;
}

bool Pool::schedule(abi::Task* const task, void* const data) const noexcept {
  abi::ScheduleArguments arguments = {sizeof arguments, nullptr, context_, task, data};
  try {
    return succeeded(api_.schedule(&arguments));
  } catch (...) {  // XLA's function has no memory for the task
    return false;
  }
}

void Pool::run(Loops& loops, const int workers) const {
  if (workers <= 1) return run_on_this_thread(loops);
  for (int loop = loops.first(); loop != Loops::none; loop = loops.next(loop)) {
    const Handle shared(new SharedLoop(loops, loop, workers));
    for (int i = 1; i < workers; ++i) {
      shared->add_owner();
      if (schedule(&run_task, shared.get())) continue;
      shared->remove_owner();
      break;
    }
    shared->work();
    shared->wait();
  }
}

}  // namespace onedsl::xla
