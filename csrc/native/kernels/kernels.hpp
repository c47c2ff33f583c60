#pragma once

#include <cstddef>
#include <cstdint>

#include "../../core/call.hpp"
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

// What a kernel reads, and the memory that it writes. Kernels read nothing else: a member here is
// all that they know of a run. run.cpp sets the members, for a whole run and for a range of
// channels.
struct KernelArgs {
  OpConfig config;
  Relu relu;
  float negative_slope = 0;
  SummationOrder order;
  // Of channel 0. Null for absent inputs, and for outputs that are not computed.
  PerPort<Input, const void*> in;
  PerPort<Output, void*> out;
  const Pitches* pitches = nullptr;
  // Whether the positions of every tensor are neighbors in memory, and the channels of a position.
  // Otherwise the kernels process them one by one.
  bool neighboring_positions = true;
  bool neighboring_channels = true;
  // Where the storing kernels of the reduce pass store the gradient of the activation, and those of
  // the apply pass read it. The other kernels do not read this.
  Output stored_diff = Output::diff_src;
  double* partials = nullptr;  // [chunks][2][channels]: the two sums of sums.inl
  Tables tables;
  bool exceeds_l2 = false;    // the tensors do not fit the second-level cache
  bool non_temporal = false;  // non-temporal stores
  double per_channel = 0;     // elements
  Totals totals;              // of runs of one pass
  Samples samples;            // of the forward pass
};

// What one call of a kernel processes: some rows of a block, which are a chunk if they are summed.
// The last row of all is followed by the rest. If planes have several segments, the block has one
// channel.
struct Tile {
  Range channels;
  Range rows;
  Index chunk = 0;  // if it is summed
  // Planes: distance in elements to the panel that is prefetched while this one is written, or 0.
  // It must be 0 if channels are not neighbors.
  Index to_next_panel = 0;
};

// A thread's memory for the sums of a tile.
struct TileScratch {
  double* doubles = nullptr;
  float* floats = nullptr;
};

// Planes: doubles per channel of a tile. Columns: doubles, and as many floats, per column of the
// whole pairs of vectors that cover a tile.
constexpr Index scratch_per_column = 2;
static constexpr Index scratch_per_plane(const int lanes) { return Index{2} * lanes; }

// The kernels of both passes that belong together: the second one reads what the first one wrote.
struct PassKernels {
  void (*reduce)(const KernelArgs&, const Tile&, const TileScratch&) = nullptr;
  void (*write)(const KernelArgs&, const Tile&) = nullptr;
};

struct Kernels {
  int lanes;
  bool splits_even_odd;  // pairs of vectors are of even and odd elements
  // Computes the coefficients that the sums need.
  void (*prepare)(const KernelArgs&, const Range& channels);
  PassKernels passes;
  // Kernels that store the gradient of the activation in the first pass, and read it in the second
  // one, instead of diff_dst and dst or the residual. Null where there are none, which
  // kernels.inl alone decides.
  PassKernels storing_columns;
  PassKernels storing_planes;
  // Computes the outputs of one value per channel and the coefficients for write() from the sums.
  // In a run of one pass: the totals from the sums, or the rest from the totals. Returns false if
  // sums lost precision; it has then set a better pivot, and they must be recomputed.
  bool (*finish)(const KernelArgs&, const Range& channels);
};

// What the derivative of an activation is computed from, besides the coefficients.
enum class DerivativeSource : std::uint8_t { src, src_and_residual, dst };

// What decides the kernels of a run, for an instruction set.
struct KernelKey {
  DataType type = DataType::f32;
  Operation operation = Operation::training_backward;
  Activation activation = Activation::none;
  DerivativeSource derivative = DerivativeSource::src;  // of the gradient of an activation
};

// avx512_bf16 has kernels for bf16 only.
namespace avx512_bf16 {
const Kernels& kernels(const KernelKey& key);
}
namespace avx512 {
const Kernels& kernels(const KernelKey& key);
}
namespace avx2 {
const Kernels& kernels(const KernelKey& key);
}
namespace baseline {
const Kernels& kernels(const KernelKey& key);
}

}  // namespace onedsl::native
