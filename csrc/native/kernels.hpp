#pragma once

#include <cstddef>

#include "../core/call.hpp"
#include "relu.hpp"
#include "summation_order.hpp"

// What the dispatching code (built for any x86-64) and the kernels (built once per instruction set)
// share: plain data and pointers to functions. There is no function that both would compile,
// because the linker could then keep the copy of an instruction set that the CPU lacks.
namespace onedsl::native {

// Some elements of channel 0, evenly spaced. Those of channel c are c * channel_stride further.
struct Samples {
  static constexpr Index most = 8;
  const void* src = nullptr;
  Index channel_stride = 0;
  Index at[most] = {};
  Index count = 0;
};

// Coefficients of the elementwise formulas:
//   dst      = (src - mean) * scale + beta, where beta has the rest of the mean that f32 lacks
//   diff_src = scale * ((diff_dst - shift) - (src - mean) * slope)
// Planes: one entry per channel. Columns: one entry per column of one or more rows (`period`
// entries), followed by a copy of the first 2 * lanes entries, so that a VecPair can be loaded from
// any column. With 3 channels, a period of two rows and 2 lanes: 0 1 2 0 1 2, 0 1 2 0. Where pairs
// are of even and odd elements, all even entries come first: 0 2 1 0 2, 1 0 2 1 0.
struct Tables {
  bool even_first = false;
  Index period = 0;
  Index entries = 0;
  float* pivot = nullptr;  // subtracted from src while it is summed
  float* mean = nullptr;
  float* scale = nullptr;
  float* beta = nullptr;
  float* shift = nullptr;
  float* slope = nullptr;
};
constexpr float* Tables::* all_tables[] = {&Tables::pivot, &Tables::mean,  &Tables::scale,
                                           &Tables::beta,  &Tables::shift, &Tables::slope};

// All memory that a run writes except the caller's outputs.
struct Workspace {
  double* partials = nullptr;  // [chunks][2][channels]: the two sums of sums.inl
  Tables tables;
};

// A whole run.
struct Task {
  Pointers memory;
  OpConfig config;
  double per_channel = 0;  // elements
  Relu relu;
  float negative_slope = 0;
  SummationOrder order;
  Samples samples;
  Workspace workspace;
  bool exceeds_l2 = false;    // the tensors do not fit the second-level cache
  bool non_temporal = false;  // non-temporal stores
  // The reduce pass stores the gradient of the activation in this output, and the apply pass reads
  // it.
  bool stores_diff = false;
  Output stored_diff = Output::diff_src;
};

// What one call of a kernel processes: some rows of a block, which are a chunk if they are summed.
// The last row of all is followed by the rest. If planes have several segments, the block has one
// channel.
struct Tile {
  Range channels;
  Range rows;
  Index chunk = 0;  // if it is summed
  // Planes: distance in elements to the panel that is prefetched while this one is written, or 0.
  Index to_next_panel = 0;
  // Whether a reduce begins and ends the sums of the tile: a tile of staged tensors has parts.
  bool begins = true;
  bool ends = true;
};

// A copy of a matrix between a tensor of any strides and dense memory.
struct Copy {
  const void* from = nullptr;
  void* to = nullptr;
  Index rows = 1;
  Index columns = 1;
  Index from_row = 0;  // strides, in elements
  Index from_column = 0;
  Index to_row = 0;
  Index to_column = 0;
  bool to_tensor = false;
  // Distance in elements to the matrix of the tensor that is prefetched, or 0.
  Index to_next = 0;
};

// A thread's memory for the sums of a tile, and for staged tensors.
struct TileScratch {
  double* doubles = nullptr;
  float* floats = nullptr;
  std::byte* staging = nullptr;
};

// Planes: doubles per channel of a tile. Columns: doubles, and as many floats, per column of the
// whole pairs of vectors that cover a tile.
constexpr Index scratch_per_column = 2;
static constexpr Index scratch_per_plane(const int lanes) { return Index{2} * lanes; }

// In the order of their calls.
struct Kernels {
  int lanes;
  bool splits_even_odd;  // pairs of vectors are of even and odd elements
  // Computes the coefficients that the sums need.
  void (*prepare)(const Task&, const Range& channels);
  void (*reduce)(const Task&, const Tile&, const TileScratch&);
  // Computes the outputs of one value per channel and the coefficients for write() from the sums.
  // In a run of one pass: the totals from the sums, or the rest from the totals. Returns false if
  // sums lost precision; it has then set a better pivot, and they must be recomputed.
  bool (*finish)(const Task&, const Range& channels);
  void (*write)(const Task&, const Tile&);
  // Copies matrices fast whose columns have stride 1 in `from`, and whose rows or columns have it
  // in `to`.
  void (*copy)(const Copy&, DataType);
};

// avx512_bf16 has kernels for bf16 only.
namespace avx512_bf16 {
const Kernels& kernels(DataType type, Operation operation, Activation activation);
}
namespace avx512 {
const Kernels& kernels(DataType type, Operation operation, Activation activation);
}
namespace avx2 {
const Kernels& kernels(DataType type, Operation operation, Activation activation);
}
namespace baseline {
const Kernels& kernels(DataType type, Operation operation, Activation activation);
}

}  // namespace onedsl::native
