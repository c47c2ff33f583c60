#pragma once

#include <cstdint>

#include "../types.hpp"

// What the dispatching code (built for any x86-64) and the kernels (built once per instruction set)
// share: plain data and pointers to functions. The functions are static, for the linker must not
// take one instruction set's copy of a function for another's.
namespace onedsl::native {

// A tensor is seen as rows, one after the other in memory, in one of two ways:
//   columns: `inner` is shorter than a vector (1 in NXC memory). A row holds `repeat` positions of
//            the outer axis, each of channels * inner elements, and column j belongs to channel
//            j / inner % channels. What remains, shorter than a row, is `rest` elements.
//   planes:  a row holds one position of the outer axis, or, where planes are few and large, one of
//            its `pieces`: `piece` elements of every plane (the last piece may be shorter).
struct Task {
  const void* src;
  const void* diff_dst;
  void* diff_src;
  const float* mean;
  const float* variance;
  const float* gamma;
  float* diff_gamma;
  float* diff_beta;
  double epsilon;
  std::int64_t channels;
  std::int64_t inner;
  double per_channel;
  bool batch;
  bool streaming;  // non-temporal stores
  bool cached;     // the tensors fit in the last cache

  bool columns;
  std::int64_t repeat;
  std::int64_t row;   // elements
  std::int64_t rest;  // elements
  std::int64_t pieces;
  std::int64_t piece;  // elements
  std::int64_t rows;
  std::int64_t chunks;  // of the rows
  std::int64_t chunk_rows;

  std::int64_t partials;
  double* partial;  // [partials][2][channels]: of diff_dst, and of diff_dst * (src - pivot)
  // diff_src = scale * ((diff_dst - shift) - (src - mean) * slope), by channel in planes; by column
  // in columns, where a table has those of some rows, and as many entries as two vectors have lanes
  // repeat the first ones.
  std::int64_t period;   // columns: entries of those rows
  std::int64_t entries;  // of a table
  float* table_mean;     // the pivot until the sums are finished
  float* scale;
  float* shift;
  float* slope;
};

// One chunk of the rows, of some neighbouring channels: of a single one if planes are in pieces.
struct Part {
  std::int64_t first_channel;
  std::int64_t last_channel;
  std::int64_t chunk;
  std::int64_t partial;  // where its sums go
  bool more;             // they are added to what is there
};

struct Kernels {
  int lanes;
  void (*fill_pivot)(const Task&);
  void (*sums)(const Task&, const Part&, double* scratch);
  void (*finish)(const Task&, std::int64_t first_channel, std::int64_t last_channel);
  void (*write)(const Task&, const Part&);
  void (*fence)();
};

// Doubles of scratch that `sums` needs for each column (columns) or channel (planes) of a part.
constexpr std::int64_t scratch_per_column = 3;
static constexpr std::int64_t scratch_per_plane(int lanes) { return 2 * lanes; }

static constexpr std::int64_t first_row(const Task& task, std::int64_t chunk) {
  const std::int64_t row = chunk * task.chunk_rows;
  return row < task.rows ? row : task.rows;
}

namespace avx512_bf16 {
const Kernels& kernels(DataType);
}
namespace avx512 {
const Kernels& kernels(DataType);
}
namespace avx2 {
const Kernels& kernels(DataType);
}
namespace baseline {
const Kernels& kernels(DataType);
}

}  // namespace onedsl::native
