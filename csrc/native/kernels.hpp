#pragma once

#include "../core/types.hpp"
#include "order.hpp"

// What the dispatching code (built for any x86-64) and the kernels (built once per instruction set)
// share: plain data and pointers to functions, and no function that both would have a copy of, for
// the linker must not take one instruction set's copy for another's.
namespace onedsl::native {

// The caller's memory. Null: an optional input is absent, an output is not wanted.
struct Tensors {
  const void* src = nullptr;
  const void* diff_dst = nullptr;
  const float* mean = nullptr;
  const float* variance = nullptr;
  const float* gamma = nullptr;
  void* diff_src = nullptr;
  float* diff_gamma = nullptr;
  float* diff_beta = nullptr;
};

struct Formula {
  double epsilon = 0;
  Spread spread = Spread::variance;
  Statistics statistics = Statistics::batch;
  double per_statistic = 0;  // elements
};

// Tables of what each channel has of its own, by channel in planes; by column in columns, where a
// table has the entries of some rows (`period`), and as many as two vectors have lanes repeat the
// first ones:
//   diff_src = scale * ((diff_dst - shift) - (src - mean) * slope)
struct Tables {
  Index period = 0;
  Index entries = 0;
  float* pivot = nullptr;  // see pivot_of()
  float* mean = nullptr;
  float* scale = nullptr;
  float* shift = nullptr;
  float* slope = nullptr;
};

// All that a run writes to, beside the caller's outputs.
struct Workspace {
  double* partials = nullptr;  // [partials][2][channels]: the two sums of reduce.inl
  Tables tables;
};

// A whole run.
struct Task {
  Tensors tensors;
  Formula formula;
  Order order;
  Workspace workspace;
  bool streaming = false;  // non-temporal stores
};

// One chunk of the rows, of some neighbouring channels: of a single one if planes are in pieces.
struct Part {
  Range channels;
  Index chunk = 0;
  Index offset = 0;  // in elements: where the chunk's place begins
  Index partial = 0;
  bool adds_to_partial = false;  // or else sets it
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

struct Kernels {
  int lanes;
  void (*fill_pivots)(const Task&);
  void (*reduce)(const Task&, const Part&, const PartialScratch&);
  void (*finish)(const Task&, const Range& channels);
  void (*write)(const Task&, const Part&);
  void (*fence)();  // after the last write of each thread that streams
};

namespace avx512_bf16 {
const Kernels& kernels(DataType type);
}
namespace avx512 {
const Kernels& kernels(DataType type);
}
namespace avx2 {
const Kernels& kernels(DataType type);
}
namespace baseline {
const Kernels& kernels(DataType type);
}

}  // namespace onedsl::native
