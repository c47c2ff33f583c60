// The kernels, compiled once per instruction set by the kernels_*.cpp, which define ONEDSL_ISA.
// No standard container and no inline function of another header may be used in here: the linker
// would be free to take this file's copy of it, for an instruction set that the CPU may lack.

#include <cmath>

#include "kernels.hpp"
#include "simd.hpp"

namespace onedsl::native::ONEDSL_ISA {
namespace {

using Index = std::int64_t;

constexpr Index minimum(Index a, Index b) { return a < b ? a : b; }

// diff_dst and diff_dst * (src - mean), summed.
struct Sums {
  Vec beta;
  Vec gamma;
};

inline Sums operator+(const Sums& a, const Sums& b) {
  return {a.beta + b.beta, a.gamma + b.gamma};
}

// The sums of n vectors, `stride` elements apart, in pairs: the error grows with log n.
template <int n, class T>
inline Sums sum_pairwise(const T* src, const T* diff_dst, Index stride, Vec mean) {
  if constexpr (n == 1) {
    const Vec d = load(diff_dst);
    return {d, d * (load(src) - mean)};
  } else if constexpr (n == 2) {
    const Vec d0 = load(diff_dst);
    const Vec d1 = load(diff_dst + stride);
    const Vec x0 = load(src) - mean;
    const Vec x1 = load(src + stride) - mean;
    return {d0 + d1, multiply_add(d1, x1, d0 * x0)};
  } else {
    const Index half = n / 2 * stride;
    return sum_pairwise<n / 2>(src, diff_dst, stride, mean) +
           sum_pairwise<n / 2>(src + half, diff_dst + half, stride, mean);
  }
}

// The lanes past the first n add nothing, whatever the mean.
template <class T>
inline Sums sum_first(int n, const T* src, const T* diff_dst, Vec mean) {
  const Vec d = load_first(n, diff_dst);
  return {d, d * (select_first(n, load_first(n, src), mean) - mean)};
}

// f32 holds the sums of so many vectors, then f64 takes over.
constexpr int tile = 8;

template <class T>
Sums sum_few(Index count, const T* src, const T* diff_dst, Index stride, Vec mean) {
  Sums sums{broadcast(0), broadcast(0)};
  for (Index i = 0; i < count; ++i)
    sums = sums + sum_pairwise<1>(src + i * stride, diff_dst + i * stride, 0, mean);
  return sums;
}

inline void add_to(double* beta, double* gamma, const Sums& sums) {
  add_to(beta, sums.beta);
  add_to(gamma, sums.gamma);
}

// ---- Sums over columns ----

// Columns [first, last) of `count` rows, from where src and diff_dst point.
template <class T>
void sum_rows(const Task& task, const T* src, const T* diff_dst, Index count, Index first,
              Index last, double* beta, double* gamma) {
  for (Index row = 0; row < count; row += tile) {
    const T* const x = src + row * task.row;
    const T* const d = diff_dst + row * task.row;
    const Index rows = minimum(tile, count - row);
    Index j = first;
    for (; j + lanes <= last; j += lanes) {
      const Vec mean = load(task.table_mean + j);
      add_to(beta + (j - first), gamma + (j - first),
             rows == tile ? sum_pairwise<tile>(x + j, d + j, task.row, mean)
                          : sum_few(rows, x + j, d + j, task.row, mean));
    }
    if (const int n = static_cast<int>(last - j); n > 0) {
      const Vec mean = load(task.table_mean + j);
      Sums sums{broadcast(0), broadcast(0)};
      for (Index i = 0; i < rows; ++i)
        sums = sums + sum_first(n, x + i * task.row + j, d + i * task.row + j, mean);
      add_to(beta + (j - first), gamma + (j - first), sums);
    }
  }
}

template <class T>
void sum_columns(const Task& task, const Part& part, double* scratch) {
  const Index first = part.first_channel * task.inner;
  const Index last = task.repeat > 1 ? task.row : part.last_channel * task.inner;
  const Index padded = (last - first + lanes - 1) / lanes * lanes;
  double* const beta = scratch;
  double* const gamma = scratch + padded;
  std::memset(scratch, 0, static_cast<std::size_t>(2 * padded) * sizeof(double));

  const Index row = first_row(task, part.chunk);
  const Index end = first_row(task, part.chunk + 1);
  const T* const src = static_cast<const T*>(task.src);
  const T* const diff_dst = static_cast<const T*>(task.diff_dst);
  sum_rows(task, src + row * task.row, diff_dst + row * task.row, end - row, first, last, beta,
           gamma);
  if (task.rest > 0 && end == task.rows && part.chunk + 1 == task.chunks)
    sum_rows(task, src + end * task.row, diff_dst + end * task.row, 1, 0, task.rest, beta, gamma);

  double* const partial = task.partial + 2 * part.chunk * task.channels;
  const Index position = task.channels * task.inner;
  for (Index c = part.first_channel; c < part.last_channel; ++c) {
    double sums[2] = {0, 0};
    for (Index k = 0; k < task.repeat; ++k)
      for (Index i = 0; i < task.inner; ++i) {
        const Index column = k * position + c * task.inner + i - first;
        sums[0] += beta[column];
        sums[1] += gamma[column];
      }
    partial[c] = sums[0];
    partial[task.channels + c] = sums[1];
  }
}

// ---- Sums over planes ----

template <class T>
void sum_piece(const T* src, const T* diff_dst, Index count, Vec mean, double* beta,
               double* gamma) {
  Index i = 0;
  for (; i + tile * lanes <= count; i += tile * lanes)
    add_to(beta, gamma, sum_pairwise<tile>(src + i, diff_dst + i, lanes, mean));
  const Index whole = (count - i) / lanes;
  Sums sums = sum_few(whole, src + i, diff_dst + i, lanes, mean);
  i += whole * lanes;
  if (const int n = static_cast<int>(count - i); n > 0)
    sums = sums + sum_first(n, src + i, diff_dst + i, mean);
  add_to(beta, gamma, sums);
}

// Where a row begins in each of its planes, and how many elements of them it has.
struct Piece {
  Index begin;  // of channel 0
  Index count;
};

inline Piece piece_of(const Task& task, Index row) {
  const Index within = row % task.pieces * task.piece;
  return {row / task.pieces * task.channels * task.inner + within,
          minimum(task.piece, task.inner - within)};
}

template <class T>
void sum_planes(const Task& task, const Part& part, double* scratch) {
  const Index channels = part.last_channel - part.first_channel;
  std::memset(scratch, 0,
              static_cast<std::size_t>(channels * scratch_per_plane(lanes)) * sizeof(double));
  const Index end = first_row(task, part.chunk + 1);
  for (Index row = first_row(task, part.chunk); row < end; ++row) {
    const Piece piece = piece_of(task, row);
    double* sums = scratch;
    for (Index c = part.first_channel; c < part.last_channel; ++c, sums += 2 * lanes) {
      const Index at = piece.begin + c * task.inner;
      sum_piece(static_cast<const T*>(task.src) + at, static_cast<const T*>(task.diff_dst) + at,
                piece.count, broadcast(task.mean[c]), sums, sums + lanes);
    }
  }
  double* const partial = task.partial + 2 * part.chunk * task.channels;
  for (Index c = part.first_channel; c < part.last_channel; ++c, scratch += 2 * lanes) {
    double sums[2] = {0, 0};
    for (int i = 0; i < lanes; ++i) {
      sums[0] += scratch[i];
      sums[1] += scratch[lanes + i];
    }
    partial[c] = sums[0];
    partial[task.channels + c] = sums[1];
  }
}

template <class T>
void sums(const Task& task, const Part& part, double* scratch) {
  task.columns ? sum_columns<T>(task, part, scratch) : sum_planes<T>(task, part, scratch);
}

// ---- Coefficients ----

// Calls set(entry) for each entry of a table that belongs to channel c.
template <class Set>
inline void for_entries(const Task& task, Index c, const Set& set) {
  if (!task.columns) return set(c);
  const Index position = task.channels * task.inner;
  for (Index k = 0; k < task.repeat; ++k)
    for (Index i = 0; i < task.inner; ++i) {
      const Index column = k * position + c * task.inner + i;
      set(column);
      for (Index copy = column + task.row; copy < task.row + lanes; copy += task.row) set(copy);
    }
}

void fill_mean(const Task& task) {
  for (Index c = 0; c < task.channels; ++c)
    for_entries(task, c, [&](Index entry) { task.table_mean[entry] = task.mean[c]; });
}

void finish(const Task& task, Index first_channel, Index last_channel) {
  for (Index c = first_channel; c < last_channel; ++c) {
    double beta = 0;
    double gamma = 0;
    for (Index k = 0; k < task.chunks; ++k) {
      beta += task.partial[2 * k * task.channels + c];
      gamma += task.partial[(2 * k + 1) * task.channels + c];
    }
    const double r = 1 / std::sqrt(static_cast<double>(task.variance[c]) + task.epsilon);
    if (task.diff_gamma) {
      task.diff_gamma[c] = static_cast<float>(gamma * r);
      task.diff_beta[c] = static_cast<float>(beta);
    }
    const float scale =
        static_cast<float>(task.gamma ? static_cast<double>(task.gamma[c]) * r : r);
    const float shift = static_cast<float>(beta / task.per_channel);
    const float slope = static_cast<float>(gamma * r / task.per_channel * r);
    for_entries(task, c, [&](Index entry) {
      task.scale[entry] = scale;
      task.shift[entry] = shift;
      task.slope[entry] = slope;
    });
  }
}

// ---- diff_src ----

struct Coefficients {
  Vec mean;
  Vec scale;
  Vec shift;
  Vec slope;
};

inline Coefficients load_coefficients(const Task& task, Index entry) {
  return {load(task.table_mean + entry), load(task.scale + entry), load(task.shift + entry),
          load(task.slope + entry)};
}

inline Coefficients broadcast_coefficients(const Task& task, Index c) {
  return {broadcast(task.mean[c]), broadcast(task.scale[c]), broadcast(task.shift[c]),
          broadcast(task.slope[c])};
}

inline Coefficients select_first(int n, const Coefficients& a, const Coefficients& b) {
  return {select_first(n, a.mean, b.mean), select_first(n, a.scale, b.scale),
          select_first(n, a.shift, b.shift), select_first(n, a.slope, b.slope)};
}

// src - mean comes first: it costs no accuracy where the mean is large against the deviation.
inline Vec batch_gradient(const Coefficients& k, Vec x, Vec d) {
  return k.scale * subtract_product(d - k.shift, x - k.mean, k.slope);
}

template <class T, bool batch, bool streaming>
struct Writer {
  const Task& task;
  const T* src = static_cast<const T*>(task.src);
  const T* diff_dst = static_cast<const T*>(task.diff_dst);
  T* diff_src = static_cast<T*>(task.diff_src);

  void write(Index at, const Coefficients& k) const {
    const Vec d = load(diff_dst + at);
    Vec result;
    if constexpr (batch)
      result = batch_gradient(k, load(src + at), d);
    else
      result = k.scale * d;
    if constexpr (streaming)
      stream(diff_src + at, result);
    else
      store(diff_src + at, result);
  }

  void write_first(int n, Index at, const Coefficients& k) const {
    const Vec d = load_first(n, diff_dst + at);
    Vec result;
    if constexpr (batch)
      result = batch_gradient(k, load_first(n, src + at), d);
    else
      result = k.scale * d;
    store_first(n, diff_src + at, result);
  }

  // Elements from `at` on before one that a non-temporal store can begin with. The tensor's own
  // type decides its alignment, so that there always is one.
  int head(Index at) const {
    if constexpr (!streaming) return 0;
    const auto address = reinterpret_cast<std::uintptr_t>(diff_src + at);
    return static_cast<int>((0 - address) % (lanes * sizeof(T)) / sizeof(T));
  }

  // Elements [begin, end), the first of them of the given column; the table is gone through
  // cyclically.
  void write_span(Index begin, Index end, Index column) const {
    const int n = static_cast<int>(minimum(head(begin), end - begin));
    if (n > 0) write_first(n, begin, load_coefficients(task, column));
    const auto advance = [&](Index count) {
      column += count;
      while (column >= task.row) column -= task.row;
    };
    advance(n);
    Index at = begin + n;
    while (at + lanes <= end) {
      const Index run = minimum((end - at) / lanes, (task.row - column + lanes - 1) / lanes);
      for (Index i = 0; i < run; ++i, at += lanes)
        write(at, load_coefficients(task, column + i * lanes));
      advance(run * lanes);
    }
    if (at < end) write_first(static_cast<int>(end - at), at, load_coefficients(task, column));
  }

  void write_columns(const Part& part) const {
    const Index row = first_row(task, part.chunk);
    const Index last_row = first_row(task, part.chunk + 1);
    if (part.last_channel - part.first_channel == task.channels) {
      const bool last = part.chunk + 1 == task.chunks;
      write_span(row * task.row, last_row * task.row + (last ? task.rest : 0), 0);
    } else {
      const Index column = part.first_channel * task.inner;
      const Index width = (part.last_channel - part.first_channel) * task.inner;
      for (Index i = row; i < last_row; ++i)
        write_span(i * task.row + column, i * task.row + column + width, column);
    }
  }

  // Where a vector crosses from one plane into the next, its lanes take the coefficients of both:
  // planes are at least a vector long.
  void write_planes(const Part& part) const {
    const Index begin_row = first_row(task, part.chunk);
    for (Index row = first_row(task, part.chunk + 1); row-- > begin_row;) {
      const Piece piece = piece_of(task, row);
      Index at = piece.begin + part.first_channel * task.inner;
      const Index end = piece.begin + (part.last_channel - 1) * task.inner + piece.count;
      Index plane_end = at + piece.count;
      Coefficients k = broadcast_coefficients(task, part.first_channel);
      if (const int n = static_cast<int>(minimum(head(at), piece.count)); n > 0) {
        write_first(n, at, k);
        at += n;
      }
      for (Index c = part.first_channel;;) {
        for (; at + lanes <= plane_end; at += lanes) write(at, k);
        const int n = static_cast<int>(plane_end - at);
        if (at + lanes > end) {
          if (++c < part.last_channel) {
            const Coefficients next = broadcast_coefficients(task, c);
            write_first(static_cast<int>(end - at), at, select_first(n, k, next));
          } else if (n > 0) {
            write_first(n, at, k);
          }
          break;
        }
        const Coefficients next = broadcast_coefficients(task, ++c);
        if (n > 0) {
          write(at, select_first(n, k, next));
          at += lanes;
        }
        k = next;
        plane_end += task.inner;
      }
    }
  }
};

template <class T, bool batch, bool streaming>
void write_part(const Task& task, const Part& part) {
  const Writer<T, batch, streaming> writer{task};
  task.columns ? writer.write_columns(part) : writer.write_planes(part);
}

template <class T>
void write(const Task& task, const Part& part) {
  if (task.batch)
    task.streaming ? write_part<T, true, true>(task, part) : write_part<T, true, false>(task, part);
  else
    task.streaming ? write_part<T, false, true>(task, part)
                   : write_part<T, false, false>(task, part);
}

void fence() { _mm_sfence(); }

template <class T>
constexpr Kernels kernels_of{lanes, fill_mean, sums<T>, finish, write<T>, fence};

}  // namespace

const Kernels& kernels(DataType type) {
  switch (type) {
    case DataType::bf16:
      return kernels_of<Bf16>;
    case DataType::f16:
      return kernels_of<F16>;
    default:
      return kernels_of<float>;
  }
}

}  // namespace onedsl::native::ONEDSL_ISA
