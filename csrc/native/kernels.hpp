#pragma once

#include "../core/types.hpp"
#include "relu.hpp"
#include "summation_order.hpp"

// What the dispatching code (built for any x86-64) and the kernels (built once per instruction set)
// share: plain data and pointers to functions, and no function that both would have a copy of, for
// the linker must not take one instruction set's copy for another's.
namespace onedsl::native {

// What is summed and what is written.
enum class Variant : std::uint8_t {
  gradient,
  gradient_by_src,  // of normalization and ReLU, whose mask is made again of src
  gradient_by_dst,  // of normalization and ReLU, whose mask is taken from its result
  normalization,
  normalization_and_relu,
};

// The caller's memory. Null: an optional input is absent, an output is not wanted.
struct Tensors {
  const void* src = nullptr;
  const void* diff_dst = nullptr;
  const void* residual = nullptr;
  const void* dst = nullptr;  // the forward pass's, read for the ReLU's mask
  const float* mean = nullptr;
  const float* variance = nullptr;
  const float* gamma = nullptr;
  const float* beta = nullptr;
  void* result = nullptr;  // diff_src, or the dst that is written
  void* diff_residual = nullptr;
  float* diff_gamma = nullptr;
  float* diff_beta = nullptr;
  float* running_mean = nullptr;
  float* running_variance = nullptr;
  float* batch_mean = nullptr;
  float* batch_variance = nullptr;
};

// In the caller's memory, for a run of one pass.
struct Totals {
  double* first = nullptr;
  double* second = nullptr;
};

struct Formula {
  double epsilon = 0;
  double momentum = 0;
  VarianceKind variance_kind = VarianceKind::variance;
  Statistics statistics = Statistics::batch;
  double per_statistic = 0;  // elements
  Relu relu;
};

// Some elements of channel 0, variance_kind over the tensor; those of channel c are c * inner
// further on.
struct Samples {
  static constexpr Index most = 8;
  Index at[most] = {};
  Index count = 0;
};

// Tables of what each channel has of its own, by channel in planes; by column in columns, where a
// table has the entries of some rows (`period`), and as many as two vectors have lanes repeat the
// first ones:
//   dst      = (src - mean) * scale + beta
//   diff_src = scale * ((diff_dst - shift) - (src - mean) * slope)
struct Tables {
  Index period = 0;
  Index entries = 0;
  float* pivot = nullptr;  // what is subtracted from src while it is summed
  float* mean = nullptr;
  float* scale = nullptr;
  float* beta = nullptr;
  float* shift = nullptr;
  float* slope = nullptr;
};

// All that a run writes to, beside the caller's outputs.
struct Workspace {
  double* partials = nullptr;  // [partials][2][channels]: the two sums of sums.inl
  Tables tables;
};

// A whole run.
struct Task {
  Tensors tensors;
  Formula formula;
  SummationOrder order;
  Samples samples;
  Workspace workspace;
  Pass pass = Pass::both;
  Totals totals;
  bool far = false;           // the tensors are more than the first caches hold
  bool non_temporal = false;  // non-temporal stores
  // diff_residual, which is diff_dst under the ReLU's mask, is written while it is summed, and then
  // read instead of diff_dst and dst.
  bool reduce_writes_residual = false;
};

// One chunk of the rows, of some neighbouring channels: of a single one if planes are in pieces.
struct Part {
  Range channels;
  Index chunk = 0;
  Index offset = 0;  // in elements: where the chunk's place begins
  Index partial = 0;
  bool adds_to_partial = false;  // or else sets it
  Index to_next = 0;  // planes, in elements: from what is written to what is summed after it, or 0
};

// A thread's own memory while it sums a part.
struct PartialScratch {
  double* doubles = nullptr;
  float* floats = nullptr;
};

// How much of it a part needs: doubles for each plane, or doubles and as many floats for each
// column of whole pairs of vectors.
constexpr Index scratch_per_column = 2;
static constexpr Index scratch_per_plane(const int lanes) { return Index{2} * lanes; }

// In the order in which they are called for a channel.
struct Kernels {
  int lanes;
  // Fills the tables that the sums are made with.
  void (*prepare)(const Task&, const Range& channels);
  void (*reduce)(const Task&, const Part&, const PartialScratch&);
  // From the sums to the results of one value a channel, and the tables that the tensors are
  // written with; or, where a run is one pass, to the totals, or from them. False: some sums are of
  // too few digits, and to be made again; it has prepared that.
  bool (*finish)(const Task&, const Range& channels);
  void (*write)(const Task&, const Part&);
  void (*fence)();  // after the last write of each thread that streams
};

namespace avx512_bf16 {
const Kernels& kernels(DataType type, Variant variant);
}
namespace avx512 {
const Kernels& kernels(DataType type, Variant variant);
}
namespace avx2 {
const Kernels& kernels(DataType type, Variant variant);
}
namespace baseline {
const Kernels& kernels(DataType type, Variant variant);
}

}  // namespace onedsl::native
