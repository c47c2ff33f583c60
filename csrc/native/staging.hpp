#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <variant>
#include <vector>

#include "../core/call.hpp"
#include "box_copy.hpp"
#include "cpu.hpp"
#include "kernels.hpp"
#include "schedule.hpp"

// Tensors with strides of their own
//
// The kernels read and write dense memory. A tile of other tensors is processed in boxes: a box of
// each strided tensor is copied to or from a thread's buffers in cache, and the kernel runs on the
// box as on a small dense problem. The boxes of a tile follow its order of summation, so that the
// bits are those of dense tensors. While a box is copied, the next one is prefetched, because the
// CPU's own prefetching does not follow the strides.
namespace onedsl::native {

// The tensors that a pass of a run reads and writes.
struct PassTensors {
  InputSet read;
  OutputSet read_back;  // which the reduce pass wrote
  OutputSet written;
};

class Staging {
 public:
  class Tiles;

  // Changes the task's samples. The call must have layouts.
  Staging(const Call& call, const Kernels& kernels, Task& task, const PassTensors& reduce,
          const PassTensors& apply, const Machine& machine);

  // The channels of each tensor that share cache lines; 1 if no two channels do.
  Index granule() const noexcept { return std::max(reduce_.least[1], write_.least[1]); }
  // Must be called before tiles are processed, whose blocks have at most so many channels.
  void choose_boxes(const SummationOrder& order, Index block);
  Index bytes_per_thread() const noexcept { return bytes_; }

 private:
  struct StagedTensor {
    std::variant<Input, Output> port;
    bool is_read = false;
    bool is_written = false;
    std::byte* data = nullptr;
    Axes axes;
  };
  struct StagedPass {
    bool reduces = false;
    std::vector<StagedTensor> tensors;  // that the pass reads or writes
    bool outputs_are_dense = true;
    Extents least{};     // of a box, for whole cache lines of each tensor
    Extents box{};       // columns: rows of each stream, channels, inner
    Index elements = 0;  // of a buffer, at most
  };
  void choose_least(StagedPass& pass, const Extents& sizes) const;
  void choose_box(StagedPass& pass, const SummationOrder& order, Index block) const;
  void choose_box_of_columns(StagedPass& pass, const SummationOrder& order, Index block) const;
  void choose_box_of_planes(StagedPass& pass, const SummationOrder& order, Index block) const;
  static SumUnit unit_of(const StagedPass& pass, const SummationOrder& order);
  Index elements_of_buffer(const StagedPass& pass) const;
  void move_samples(Samples& samples, const SummationOrder& order);

  const Kernels& kernels_;
  DataType type_;
  Index element_bytes_;
  Index buffers_bytes_;  // see Machine::staging_bytes
  StagedPass reduce_;
  StagedPass write_;
  Index bytes_ = 0;
  Index partials_ = 0;  // bytes of a thread's partial sums
  std::vector<std::byte> samples_;
};

// Processes the tiles of a thread.
class Staging::Tiles {
 public:
  Tiles(const Staging& staging, const Task& task, const TileScratch& scratch)
      : staging_(staging), task_(task), scratch_(scratch) {}

  // The last box of a tile is processed when the next one is known.
  void reduce(const Tile& tile);
  void write(const Tile& tile);
  void finish();

 private:
  // A part of a tile: a range of positions of each stream. They have equal lengths; the last may be
  // longer.
  struct Box {
    bool reduces = false;
    Index chunk = 0;
    std::array<Range, native::streams> streams;
    std::size_t num_streams = 1;
    Range channels;
    Range inner;
    bool begins = true;  // see Tile
    bool ends = true;

    Ranges ranges(const std::size_t stream) const {
      return {streams[stream < num_streams ? stream : num_streams - 1], channels, inner};
    }
  };

  void add(const Box& box);
  bool ends_at_unit(const Box& box) const;
  void process(const Box& box, const Box* next) const;
  void run_kernel(Task& local, const Box& box, const Extents& lengths) const;
  void reduce_columns(Box& box);
  void reduce_planes(Box& box);
  void write_range(Box& box, const Tile& tile, const Range& positions, const Range& inner);

  const Staging& staging_;
  const Task& task_;
  const TileScratch& scratch_;
  std::optional<Box> last_;
};

}  // namespace onedsl::native
