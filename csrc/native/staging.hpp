#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "../core/layout.hpp"
#include "../core/problem.hpp"
#include "kernels.hpp"
#include "schedule.hpp"

// Tensors with strides of their own
//
// The kernels read and write dense memory. A tile of other tensors is processed in boxes: a box of
// each strided tensor is copied to or from a thread's buffers in cache, and the kernel runs on the
// box as on a small dense problem. The boxes of a tile follow its order of summation, so that the
// bits are those of dense tensors.
namespace onedsl::native {

class Staging {
 public:
  // Ranges of the positions, channels and inner elements of a tensor.
  using Axes = std::array<Layout, 3>;
  using Extents = std::array<Index, 3>;
  struct Tensor {
    const void* Tensors::* input = nullptr;
    void* Tensors::* output = nullptr;
    bool is_read = false;
    bool is_written = false;
    std::byte* data = nullptr;
    Axes axes;
  };
  struct Pass {
    std::vector<Tensor> tensors;  // that the pass reads or writes
    bool outputs_are_dense = true;
    bool joined = false;  // every tensor has dense positions, which need no copy
    Extents least{};      // of a box, for whole cache lines of each tensor
    Extents box{};        // columns: rows of each stream, channels, inner
    Index elements = 0;   // of a buffer, at most
  };

  // Changes the schedule's block, and the task's samples.
  Staging(const Problem& problem, const Kernels& kernels, Task& task, const Ports& ports,
          Schedule& schedule);

  std::size_t bytes_per_thread() const noexcept { return bytes_; }
  void reduce(const Task& task, const Tile& tile, const TileScratch& scratch) const;
  void write(const Task& task, const Tile& tile, const TileScratch& scratch) const;

 private:
  struct Box;
  void plan(Pass& pass, const SummationOrder& order, bool reduces, Index block) const;
  template <class Run>
  void run(const Task& task, const Pass& pass, const Box& box, std::byte* memory,
           const Run& run) const;
  template <class ReducePart>
  void reduce_columns(const SummationOrder& order, Index chunk, Box& box,
                      const ReducePart& reduce_part) const;
  template <class ReducePart>
  void reduce_planes(const SummationOrder& order, Index chunk, Box& box,
                     const ReducePart& reduce_part) const;

  const Kernels& kernels_;
  DataType type_;
  Index element_bytes_;
  Pass reduce_;
  Pass write_;
  std::size_t bytes_ = 0;
  std::size_t partials_ = 0;  // bytes of a thread's partial sums
  std::vector<std::byte> samples_;
};

// Return whether a tensor of the call is not dense in the memory order of src.
bool needs_staging(const Problem& problem, const Ports& ports);

}  // namespace onedsl::native
