#include "memory.hpp"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>
#include <new>
#include <type_traits>

namespace onedsl::torch {
namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t huge_page = std::size_t{2} << 20;
// More than the large results of a training step, so that each window contains a step's maximum.
constexpr int window = 1024;                          // calls of acquire_block
constexpr std::size_t spare = std::size_t{32} << 20;  // bytes that may be kept unused in any case

std::byte* map(const std::size_t bytes) noexcept {
  const std::size_t mapped = bytes + huge_page;
  void* const map =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return nullptr;
  auto* const first = static_cast<std::byte*>(map);
  const std::size_t before =
      (huge_page - reinterpret_cast<std::uintptr_t>(first) % huge_page) % huge_page;
  std::byte* const begin = first + before;
  if (before > 0) munmap(first, before);
  munmap(begin + bytes, huge_page - before);
  // A system without huge pages returns an error; ordinary pages remain.
  static_cast<void>(madvise(begin, bytes, MADV_HUGEPAGE));
  return begin;
}

// All functions but the fork handlers need `mutex` locked.
struct Pool {
  Block take(std::size_t bytes);
  void keep(Block block) noexcept;
  void unmap_oldest(std::size_t limit) noexcept;
  // Returns the limit of used and kept bytes. Each size may need blocks more than at the time of
  // the most used bytes: a gradient has its layer's size. With an eighth alone, 8 to 13 blocks were
  // mapped again in each step of three of five networks, in which few results are used at a time.
  std::size_t limit() const noexcept {
    const std::size_t used = std::max(most, most_before);
    return used == 0 ? 0 : used + std::max(used / 8, spare);
  }

  std::mutex mutex;
  std::array<Block, 1024> kept{};  // the oldest first
  std::size_t num_kept = 0;
  std::size_t kept_bytes = 0, used_bytes = 0;
  // The most used bytes at once in this window and in the one before.
  std::size_t most = 0, most_before = 0;
  int calls = 0;
};

Pool pool;
// PyTorch frees tensors during process exit, after static destruction.
static_assert(std::is_trivially_destructible_v<Pool>);

// A child must not wait for a thread that it does not have. Without kept blocks, a fork does not
// make the parent copy them when it writes to them again.
[[maybe_unused]] const int fork_handler = pthread_atfork(
    [] {
      pool.mutex.lock();
      pool.unmap_oldest(0);
    },
    [] { pool.mutex.unlock(); }, [] { pool.mutex.unlock(); });

// Unmaps the oldest kept blocks until at most `limit` bytes are kept.
void Pool::unmap_oldest(const std::size_t limit) noexcept {
  std::size_t count = 0;
  for (; kept_bytes > limit; ++count) {
    munmap(kept[count].begin, kept[count].bytes);
    kept_bytes -= kept[count].bytes;
  }
  std::copy(kept.begin() + count, kept.begin() + num_kept, kept.begin());
  num_kept -= count;
}

Block Pool::take(const std::size_t bytes) {
  auto* const end = kept.begin() + num_kept;
  auto* best = end;
  for (auto* block = kept.begin(); block != end; ++block) {
    const bool fits = block->bytes >= bytes && block->bytes - bytes <= bytes / 8;
    // Of equal blocks the newest, which may still be in cache.
    if (fits && (best == end || block->bytes <= best->bytes)) best = block;
  }
  if (++calls == window) {
    calls = 0;
    most_before = most;
    most = used_bytes;
  }
  Block block{nullptr, bytes};
  if (best != end) {
    block = *best;
    std::copy(best + 1, end, best);
    num_kept -= 1;
    kept_bytes -= block.bytes;
  }
  const std::size_t most_before_this = most;
  most = std::max(most, used_bytes + block.bytes);
  unmap_oldest(limit() - std::min(limit(), used_bytes + block.bytes));
  if (best == end && (block.begin = map(bytes)) == nullptr) {
    unmap_oldest(0);
    if ((block.begin = map(bytes)) == nullptr) {
      most = most_before_this;
      throw std::bad_alloc();
    }
  }
  used_bytes += block.bytes;
  return block;
}

void Pool::keep(const Block block) noexcept {
  used_bytes -= block.bytes;
  if (num_kept == kept.size()) unmap_oldest(kept_bytes - 1);
  kept[num_kept++] = block;
  kept_bytes += block.bytes;
  unmap_oldest(limit() - std::min(limit(), used_bytes));
}

}  // namespace

Block acquire_block(const std::size_t bytes) {
  const std::lock_guard lock(pool.mutex);
  return pool.take((bytes + page - 1) / page * page);
}

void release_block(const Block block) noexcept {
  const std::lock_guard lock(pool.mutex);
  pool.keep(block);
}

void stop_keeping_blocks() noexcept {
  const std::lock_guard lock(pool.mutex);
  pool.most = pool.most_before = 0;
  pool.unmap_oldest(0);
}

}  // namespace onedsl::torch
