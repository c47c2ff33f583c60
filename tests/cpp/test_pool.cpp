#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

#include "check.hpp"
#include "tests.hpp"
#include "xla/pool.hpp"

namespace {

// Allocations of this thread until the one that fails; 0: none fails.
thread_local int allocations_left = 0;
// Blocks of memory that are not freed.
std::atomic<int> blocks = 0;

}  // namespace

void* operator new(const std::size_t bytes) {
  void* const memory =
      allocations_left > 0 && --allocations_left == 0 ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  ++blocks;
  return memory;
}
void operator delete(void* const memory) noexcept {
  if (memory != nullptr) --blocks;
  std::free(memory);
}
void operator delete(void* const memory, std::size_t) noexcept { operator delete(memory); }

namespace onedsl::test {
namespace {

// Threads with XLA's interface of a pool. Each task has a thread of its own.
struct OwnThreads {
  int accepted = 0;     // the pool rejects further tasks
  bool throws = false;  // instead of returning an error
  bool late = false;    // tasks begin some time after they are scheduled
  std::vector<std::thread> tasks = {};
  int rejected = 0;
  int destroyed_errors = 0;
};

xla::abi::Error* schedule(xla::abi::ScheduleArguments* const arguments) {
  auto& own = *static_cast<OwnThreads*>(arguments->context);
  if (own.accepted == 0) {
    ++own.rejected;
    if (own.throws) throw std::bad_alloc();
    return reinterpret_cast<xla::abi::Error*>(&own);
  }
  --own.accepted;
  own.tasks.emplace_back([late = own.late, task = arguments->task, data = arguments->data] {
    if (late) std::this_thread::sleep_for(std::chrono::microseconds(300));
    task(data);
  });
  return nullptr;
}

xla::abi::Error* num_threads(xla::abi::NumThreadsArguments* const arguments) {
  *arguments->count = 8;
  return nullptr;
}

void destroy_error(xla::abi::DestroyArguments* const arguments) {
  ++reinterpret_cast<OwnThreads*>(arguments->error)->destroyed_errors;
}

// Loops that count their shares, with memory that no thread may use after the call.
class CountedLoops final : public Loops {
 public:
  explicit CountedLoops(const int workers) : counts_(3, std::vector<int>(workers)) {}
  ~CountedLoops() { check(running_ == 0, "a share runs after the call"); }

  int first() const noexcept override { return 0; }
  int next(const int loop) const noexcept override { return is_last(loop) ? none : loop + 1; }
  bool is_last(const int loop) const noexcept override { return loop == 2; }
  void run(const int loop, const Worker& worker) override {
    ++running_;
    // The caller has computed its shares, and must wait.
    if (std::this_thread::get_id() != caller_) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    // What the loop before has written, by all shares.
    if (loop > 0) {
      for (const int count : counts_[loop - 1]) wrong_ = wrong_ || count != 1;
    }
    ++counts_[loop][worker.index];
    --running_;
  }
  void check_all_ran() const {
    check(!wrong_, "a loop began before the one before had ended");
    for (const auto& loop : counts_) {
      for (const int count : loop) check(count == 1, "a share ran ", count, " times");
    }
  }

 private:
  const std::thread::id caller_ = std::this_thread::get_id();
  std::vector<std::vector<int>> counts_;
  std::atomic<int> running_ = 0;
  std::atomic<bool> wrong_ = false;
};

// Returns whether the call had the memory that it needs.
bool run_in_pool(OwnThreads& own, const int workers, const int failing_allocation) {
  xla::abi::Api api{};
  api.size = sizeof api;
  api.schedule = &schedule;
  api.num_threads = &num_threads;
  api.destroy_error = &destroy_error;
  const xla::Pool pool(api, &own);
  check(pool.count() == 8, "the pool has ", pool.count(), " threads");
  bool had_memory = true;
  own.tasks.reserve(static_cast<std::size_t>(3 * workers));
  const int blocks_before = blocks;
  {
    CountedLoops loops(workers);
    allocations_left = failing_allocation;
    try {
      pool.run(loops, workers);
    } catch (const std::bad_alloc&) {
      had_memory = false;
    }
    allocations_left = 0;
    if (had_memory) loops.check_all_ran();
  }
  for (std::thread& task : own.tasks) task.join();
  check(blocks == blocks_before, blocks - blocks_before, " blocks of memory are not freed");
  // After a rejection, this thread computes the rest of the loop.
  check(own.rejected <= 3, own.rejected, " tasks of three loops were rejected");
  check(own.destroyed_errors == (own.throws ? 0 : own.rejected), own.destroyed_errors, " of ",
        own.rejected, " errors were destroyed");
  return had_memory;
}

}  // namespace

void test_pool() {
  for (const int workers : {1, 2, 5, 8}) {
    for (const bool late : {false, true}) {
      for (const bool throws : {false, true}) {
        for (int accepted = 0; accepted <= 3 * (workers - 1); ++accepted) {
          for (int repeated = 0; repeated < 5; ++repeated) {
            OwnThreads own{accepted, throws, late};
            check(run_in_pool(own, workers, 0), "no memory");
          }
        }
        // Each allocation fails once: those of the pool, and those of its threads.
        int without_memory = 0;
        for (int k = 1; k <= 20 * workers; ++k) {
          OwnThreads own{3 * workers, throws, late};
          without_memory += run_in_pool(own, workers, k) ? 0 : 1;
        }
        // One of each loop. A task that the pool has no memory for runs on this thread.
        const int expected = workers == 1 ? 0 : 3;
        check(without_memory == expected, without_memory, " calls without memory");
      }
    }
  }
}

}  // namespace onedsl::test
