#pragma once

#include <algorithm>
#include <cstddef>
#include <variant>
#include <vector>

#include "../core/call.hpp"
#include "box_copy.hpp"
#include "cpu.hpp"
#include "kernels.hpp"
#include "summation_order.hpp"

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

// A tensor that a pass reads or writes.
struct StagedTensor {
  std::variant<Input, Output> port;
  bool is_read = false;
  bool is_written = false;
  std::byte* data = nullptr;
  Axes axes;
};

// The boxes of a pass.
struct StagedPass {
  bool reduces = false;
  std::vector<StagedTensor> tensors;
  bool outputs_are_dense = true;
  Extents least{};     // of a box, for whole cache lines of each tensor
  Extents box{};       // columns: rows of each stream, channels, inner
  Index elements = 0;  // of a buffer, at most
};

// The sizes of the boxes. Constant once it is part of a Plan, which makes it in two steps, because
// the schedule between them depends on the granule. StagedTiles processes the boxes.
class Staging {
 public:
  // The call must have layouts.
  Staging(const Call& call, const Pointers& memory, const SummationOrder& order,
          const PassTensors& reduce, const PassTensors& apply, const Machine& machine);

  // The channels of each tensor that share cache lines; 1 if no two channels do.
  Index granule() const noexcept { return std::max(reduce_.least[1], apply_.least[1]); }
  // Replaces samples of a dense tensor by those of src, or of copies in this object.
  void move_samples(Samples& samples, const SummationOrder& order);
  // Must be called before tiles are processed, whose blocks have at most so many channels.
  void choose_boxes(const SummationOrder& order, Index block);

  DataType type() const noexcept { return type_; }
  const StagedPass& reduce() const noexcept { return reduce_; }
  const StagedPass& apply() const noexcept { return apply_; }
  Index bytes_per_thread() const noexcept { return bytes_; }
  // A thread's memory begins with the partial sums of a box, which have this many bytes. Buffers
  // follow.
  Index bytes_of_partials() const noexcept { return bytes_of_partials_; }

 private:
  void choose_least(StagedPass& pass, const Extents& sizes) const;
  void choose_box(StagedPass& pass, const SummationOrder& order, Index block) const;
  void choose_box_of_columns(StagedPass& pass, const SummationOrder& order, Index block) const;
  void choose_box_of_planes(StagedPass& pass, const SummationOrder& order, Index block) const;
  static SumUnit unit_of(const StagedPass& pass, const SummationOrder& order);
  Index elements_of_buffer(const StagedPass& pass) const;

  DataType type_;
  Index element_bytes_;
  Index buffers_bytes_;  // see Machine::staging_bytes
  StagedPass reduce_;
  StagedPass apply_;
  Index bytes_ = 0;
  Index bytes_of_partials_ = 0;
  std::vector<std::byte> samples_;
};

}  // namespace onedsl::native
