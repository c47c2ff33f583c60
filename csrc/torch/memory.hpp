#pragma once

#include <cstddef>

// Memory of large results.
//
// malloc returns the top of its heap to the system when it becomes free, and what it returns
// depends on the order of all calls of a process. A training step then takes the same memory from
// the system again, with a page fault for every 4 KB, in some processes and not in others. Blocks
// are kept when they are freed and used again, so each page is taken once.
namespace onedsl::torch {

struct Block {
  std::byte* begin;
  std::size_t bytes;
};

// Returns a block of at least `bytes` that begins at a huge page. If the system has no memory, all
// kept blocks are returned to it; if it then still has none, `begin` is null.
Block acquire_block(std::size_t bytes) noexcept;

// Keeps a block for the next acquire_block, on any thread and during process exit, too. Returns the
// oldest kept blocks to the system while used and kept bytes exceed the most used at once during
// the last one to two thousand calls of acquire_block by more than an eighth and more than 32 MB.
void release_block(Block block) noexcept;

// Returns whether blocks are kept, at little cost.
bool keeps_blocks() noexcept;

// Counts memory that PyTorch allocates for a result of its own as used, until the next
// acquire_block: its evaluation would otherwise need memory beside what a training step has left.
void count_allocation(std::size_t bytes) noexcept;

// Lets the system take the memory of kept blocks, and of those that are released before the next
// acquire_block, whenever it needs memory. Until then it causes no page faults to use them again.
void offer_kept_blocks() noexcept;

}  // namespace onedsl::torch
