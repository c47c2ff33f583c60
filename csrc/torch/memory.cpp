#include "memory.hpp"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
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

void unmap(const Block& block) noexcept { munmap(block.begin, block.bytes); }

// Versions before Linux 4.5 return an error.
void offer(const Block& block) noexcept {
  static_cast<void>(madvise(block.begin, block.bytes, MADV_FREE));
}

constexpr Block none = {nullptr, 0};

// The kept blocks, and how many bytes are used. All functions need `mutex` locked; none of them
// calls the system, which may take long.
struct Pool {
  // Removes and returns the kept block that fits best, or `none`.
  Block take(std::size_t bytes) noexcept;
  // Removes and returns the oldest kept block, or `none`.
  Block take_oldest() noexcept { return num_kept == 0 ? none : remove(kept.begin()); }
  Block take_excess() noexcept;
  void use(std::size_t bytes) noexcept;
  // Returns false if there are too many blocks.
  bool keep(Block block) noexcept;
  // Returns the limit of used and kept bytes: the most that were used at once, and some more,
  // because a block is used again for results of its own size only. For example two results of 8 MB
  // and one of 2 MB are used at once, 18 MB, and a later gradient needs another 2 MB. With an
  // eighth alone, 8 to 13 blocks were mapped again in each step of three of five networks, in which
  // few results are used at a time.
  std::size_t limit() const noexcept {
    const std::size_t used = std::max(max_used, max_used_before);
    return used + std::max(used / 8, spare);
  }

  std::mutex mutex;
  std::array<Block, 1024> kept{};         // the oldest first
  std::atomic<std::size_t> num_kept = 0;  // is also read without the lock
  std::size_t kept_bytes = 0, used_bytes = 0;
  std::size_t allocated_by_pytorch = 0;
  // The most used bytes at once in this window and in the one before.
  std::size_t max_used = 0, max_used_before = 0;
  int calls = 0;
  bool is_offered = false;

 private:
  Block remove(Block* block) noexcept;
};

Pool pool;
// PyTorch frees tensors during process exit, after static destruction.
static_assert(std::is_trivially_destructible_v<Pool>);

Block Pool::remove(Block* const block) noexcept {
  const Block removed = *block;
  std::copy(block + 1, kept.begin() + num_kept, block);
  num_kept -= 1;
  kept_bytes -= removed.bytes;
  return removed;
}

Block Pool::take(const std::size_t bytes) noexcept {
  auto* const end = kept.begin() + num_kept;
  auto* best = end;
  for (auto* block = kept.begin(); block != end; ++block) {
    const bool fits = block->bytes >= bytes && block->bytes - bytes <= bytes / 8;
    // Of equal blocks the newest, which may still be in cache.
    if (fits && (best == end || block->bytes <= best->bytes)) best = block;
  }
  return best == end ? none : remove(best);
}

Block Pool::take_excess() noexcept {
  const std::size_t used = used_bytes + allocated_by_pytorch;
  return used + kept_bytes > limit() || num_kept == kept.size() ? take_oldest() : none;
}

void Pool::use(const std::size_t bytes) noexcept {
  if (++calls == window) {
    calls = 0;
    max_used_before = max_used;
    max_used = used_bytes;
  }
  used_bytes += bytes;
  max_used = std::max(max_used, used_bytes);
  allocated_by_pytorch = 0;
  is_offered = false;
}

bool Pool::keep(const Block block) noexcept {
  if (num_kept == kept.size()) return false;
  kept[num_kept++] = block;
  kept_bytes += block.bytes;
  return true;
}

template <class Function>
auto locked(const Function& function) noexcept {
  const std::lock_guard lock(pool.mutex);
  return function();
}

// Calls a function for the blocks that another one removes from the pool.
template <class Take, class Use>
void for_each(const Take& take, const Use& use) noexcept {
  for (Block block = locked(take); block.begin != nullptr; block = locked(take)) use(block);
}

void unmap_excess() noexcept {
  for_each([] { return pool.take_excess(); }, unmap);
}

// A child must not wait for a thread that it does not have. Without kept blocks, a fork does not
// make the parent copy them when it writes to them again.
[[maybe_unused]] const int fork_handler = pthread_atfork(
    [] {
      pool.mutex.lock();
      while (pool.num_kept > 0) unmap(pool.take_oldest());
    },
    [] { pool.mutex.unlock(); }, [] { pool.mutex.unlock(); });

}  // namespace

Block acquire_block(const std::size_t bytes) noexcept {
  const std::size_t pages = (bytes + page - 1) / page * page;
  Block block = locked([&] { return pool.take(pages); });
  if (block.begin == nullptr) block = {map(pages), pages};
  if (block.begin == nullptr) {
    for_each([] { return pool.take_oldest(); }, unmap);
    block.begin = map(pages);
  }
  if (block.begin == nullptr) return none;
  locked([&] { pool.use(block.bytes); });
  unmap_excess();
  return block;
}

void release_block(const Block block) noexcept {
  if (locked([] { return pool.is_offered; })) offer(block);
  const bool is_kept = locked([&] {
    pool.used_bytes -= block.bytes;
    return pool.keep(block);
  });
  is_kept ? unmap_excess() : unmap(block);
}

bool keeps_blocks() noexcept { return pool.num_kept.load(std::memory_order_relaxed) > 0; }

void count_allocation(const std::size_t bytes) noexcept {
  locked([&] { pool.allocated_by_pytorch += bytes; });
  unmap_excess();
}

void offer_kept_blocks() noexcept {
  std::size_t left = locked([] {
    pool.is_offered = true;
    return pool.num_kept.load();
  });
  const auto oldest = [&] { return left-- > 0 ? pool.take_oldest() : none; };
  for_each(oldest, [](const Block block) {
    offer(block);
    if (!locked([&] { return pool.keep(block); })) unmap(block);
  });
}

}  // namespace onedsl::torch
