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

inline Sums operator+(const Sums& a, const Sums& b) { return {a.beta + b.beta, a.gamma + b.gamma}; }

// What is subtracted from src while it is summed: the mean, or one of few bits near it. In f32,
// src - mean is rounded alike for all src of one binade, an error that adds up as the number of
// elements does; with a pivot of few bits the difference is exact. finish() makes good for what the
// mean is off it. Few elements are summed about the mean itself, for zeros to be exact.
constexpr double few_elements = 8192;

inline float pivot(const Task& task, Index c) {
  const float mean = task.mean[c];
  if (task.per_channel <= few_elements) return mean;
  std::uint32_t bits = 0;
  std::memcpy(&bits, &mean, sizeof bits);
  bits &= 0xfffff800U;
  float result = 0;
  std::memcpy(&result, &bits, sizeof result);
  return result;
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
    const Sums low = sum_pairwise<n / 2>(src, diff_dst, stride, mean);
    const Sums high = sum_pairwise<n / 2>(src + half, diff_dst + half, stride, mean);
    return low + high;
  }
}

// The lanes past the first n add nothing, whatever the mean.
template <class T>
inline Sums sum_first(int n, const T* src, const T* diff_dst, Vec mean) {
  const Vec d = load_first(n, diff_dst);
  return {d, d * (select_first(n, load_first(n, src), mean) - mean)};
}

// A number of rows, as a type.
template <int n>
struct Rows {
  static constexpr int value = n;
};

// f32 holds the sums of so many vectors, then f64 takes over.
constexpr int tile = 8;

template <class T>
Sums sum_few(Index count, const T* src, const T* diff_dst, Index stride, Vec mean) {
  Sums sums{broadcast(0), broadcast(0)};
  for (Index i = 0; i < count; ++i)
    sums = sums + sum_pairwise<1>(src + i * stride, diff_dst + i * stride, 0, mean);
  return sums;
}

// The same in f64.
struct WideSums {
  Wide beta;
  Wide gamma;

  void add(const Sums& sums) {
    beta = beta + widen(sums.beta);
    gamma = gamma + widen(sums.gamma);
  }
};

inline WideSums load_sums(const double* beta, const double* gamma) {
  return {load_wide(beta), load_wide(gamma)};
}
inline void store_sums(double* beta, double* gamma, const WideSums& sums) {
  store_wide(beta, sums.beta);
  store_wide(gamma, sums.gamma);
}

inline void put(const Part& part, double* partial, double sum) {
  *partial = part.more ? *partial + sum : sum;
}

// ---- Sums over columns ----

// Columns [0, width) of n rows are added to f32 sums.
template <int n, class T>
void sum_rows(const T* src, const T* diff_dst, Index stride, const float* mean, Index width,
              float* beta, float* gamma) {
  const auto add = [&](Index j, const Sums& sums) {
    store(beta + j, load(beta + j) + sums.beta);
    store(gamma + j, load(gamma + j) + sums.gamma);
  };
  Index j = 0;
  for (; j + lanes <= width; j += lanes)
    add(j, sum_pairwise<n>(src + j, diff_dst + j, stride, load(mean + j)));
  if (const int rest = static_cast<int>(width - j); rest > 0)
    for (Index i = 0; i < n; ++i)
      add(j, sum_first(rest, src + i * stride + j, diff_dst + i * stride + j, load(mean + j)));
}

// Moves f32 sums over to f64 ones.
inline void flush(Index count, float* narrow, double* wide) {
  for (Index j = 0; j < count; j += lanes) {
    store_wide(wide + j, load_wide(wide + j) + widen(load(narrow + j)));
    store(narrow + j, broadcast(0));
  }
}

template <class T>
void sum_columns(const Task& task, const Part& part, double* scratch) {
  const Index first = part.first_channel * task.inner;
  const Index last = task.repeat > 1 ? task.row : part.last_channel * task.inner;
  const Index padded = (last - first + lanes - 1) / lanes * lanes;
  double* const beta = scratch;
  double* const gamma = beta + padded;
  float* const beta_tile = reinterpret_cast<float*>(gamma + padded);
  float* const gamma_tile = beta_tile + padded;
  std::memset(scratch, 0, static_cast<std::size_t>(padded * scratch_per_column) * sizeof(double));

  const Index begin = first_row(task, part.chunk);
  const Index end = first_row(task, part.chunk + 1);
  const T* const src = static_cast<const T*>(task.src) + first;
  const T* const diff_dst = static_cast<const T*>(task.diff_dst) + first;
  const float* const mean = task.table_mean + first;
  const auto sum = [&](auto rows, Index row) {
    sum_rows<rows.value>(src + row * task.row, diff_dst + row * task.row, task.row, mean,
                         row == task.rows ? task.rest : last - first, beta_tile, gamma_tile);
  };
  Index row = begin;
  if (task.cached)
    for (; row + tile <= end; row += tile) {
      sum(Rows<tile>{}, row);
      if ((row - begin) % (4 * tile) == 0) flush(2 * padded, beta_tile, beta);
    }
  // Out of cache, memory is read in its own order: several rows at once take twice the time.
  for (Index i = 0; row < end; ++row) {
    sum(Rows<1>{}, row);
    if (++i % tile == 0) flush(2 * padded, beta_tile, beta);
  }
  if (task.rest > 0 && part.chunk + 1 == task.chunks) sum(Rows<1>{}, task.rows);
  flush(2 * padded, beta_tile, beta);

  double* const partial = task.partial + 2 * part.partial * task.channels;
  const Index position = task.channels * task.inner;
  for (Index c = part.first_channel; c < part.last_channel; ++c) {
    double sums[2] = {0, 0};
    for (Index k = 0; k < task.repeat; ++k)
      for (Index i = 0; i < task.inner; ++i) {
        const Index column = k * position + c * task.inner + i - first;
        sums[0] += beta[column];
        sums[1] += gamma[column];
      }
    put(part, partial + c, sums[0]);
    put(part, partial + task.channels + c, sums[1]);
  }
}

// ---- Sums over planes ----

template <class T>
void sum_piece(const T* src, const T* diff_dst, Index count, Vec mean, double* beta,
               double* gamma) {
  WideSums wide = load_sums(beta, gamma);
  Index i = 0;
  for (; i + tile * lanes <= count; i += tile * lanes)
    wide.add(sum_pairwise<tile>(src + i, diff_dst + i, lanes, mean));
  const Index whole = (count - i) / lanes;
  Sums sums = sum_few(whole, src + i, diff_dst + i, lanes, mean);
  i += whole * lanes;
  if (const int n = static_cast<int>(count - i); n > 0)
    sums = sums + sum_first(n, src + i, diff_dst + i, mean);
  wide.add(sums);
  store_sums(beta, gamma, wide);
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
                piece.count, broadcast(pivot(task, c)), sums, sums + lanes);
    }
  }
  double* const partial = task.partial + 2 * part.partial * task.channels;
  for (Index c = part.first_channel; c < part.last_channel; ++c, scratch += 2 * lanes) {
    double sums[2] = {0, 0};
    for (int i = 0; i < lanes; ++i) {
      sums[0] += scratch[i];
      sums[1] += scratch[lanes + i];
    }
    put(part, partial + c, sums[0]);
    put(part, partial + task.channels + c, sums[1]);
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

void fill_pivot(const Task& task) {
  for (Index c = 0; c < task.channels; ++c) {
    const float value = pivot(task, c);
    for_entries(task, c, [&](Index entry) { task.table_mean[entry] = value; });
  }
}

void finish(const Task& task, Index first_channel, Index last_channel) {
  for (Index c = first_channel; c < last_channel; ++c) {
    double beta = 0;
    double gamma = 0;
    for (Index k = 0; k < task.partials; ++k) {
      beta += task.partial[2 * k * task.channels + c];
      gamma += task.partial[(2 * k + 1) * task.channels + c];
    }
    gamma += (static_cast<double>(pivot(task, c)) - static_cast<double>(task.mean[c])) * beta;
    const double r = 1 / std::sqrt(static_cast<double>(task.variance[c]) + task.epsilon);
    if (task.diff_gamma) {
      task.diff_gamma[c] = static_cast<float>(gamma * r);
      task.diff_beta[c] = static_cast<float>(beta);
    }
    const float scale = static_cast<float>(task.gamma ? static_cast<double>(task.gamma[c]) * r : r);
    const float shift = static_cast<float>(beta / task.per_channel);
    const float slope = static_cast<float>(gamma * r / task.per_channel * r);
    for_entries(task, c, [&](Index entry) {
      task.table_mean[entry] = task.mean[c];
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

// The tables from one entry on.
struct Table {
  const float* mean;
  const float* scale;
  const float* shift;
  const float* slope;

  Table(const Task& task, Index entry)
      : mean(task.table_mean + entry),
        scale(task.scale + entry),
        shift(task.shift + entry),
        slope(task.slope + entry) {}

  Coefficients at(Index i) const {
    return {load(mean + i), load(scale + i), load(shift + i), load(slope + i)};
  }
};

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

  // `count` whole vectors of each of n rows, where coefficients(i) are those of the i-th vector.
  template <int n = 1, class Of>
  void write(Index count, Index at, const Of& coefficients) const {
    // Copies: *this would be read again after every store.
    const T* const x = src + at;
    const T* const d = diff_dst + at;
    T* const result = diff_src + at;
    const Index stride = task.row;
    for (Index i = 0; i < count * lanes; i += lanes) {
      const Coefficients k = coefficients(i);
      for (Index j = i; j < i + n * stride; j += stride) {
        Vec gradient;
        if constexpr (batch)
          gradient = batch_gradient(k, load(x + j), load(d + j));
        else
          gradient = k.scale * load(d + j);
        if constexpr (streaming)
          stream(result + j, gradient);
        else
          store(result + j, gradient);
        if constexpr (n == 1) break;
      }
    }
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
    if (n > 0) write_first(n, begin, Table(task, column).at(0));
    const auto advance = [&](Index count) {
      column += count;
      while (column >= task.row) column -= task.row;
    };
    advance(n);
    Index at = begin + n;
    while (at + lanes <= end) {
      const Index run = minimum((end - at) / lanes, (task.row - column + lanes - 1) / lanes);
      write(run, at, [table = Table(task, column)](Index i) { return table.at(i); });
      at += run * lanes;
      advance(run * lanes);
    }
    if (at < end) write_first(static_cast<int>(end - at), at, Table(task, column).at(0));
  }

  // Columns of n rows, whose coefficients are then loaded once.
  template <int n>
  void write_rows(Index row, Index column, Index width) const {
    const Table table(task, column);
    const Index at = row * task.row + column;
    const Index whole = width / lanes;
    write<n>(whole, at, [table](Index i) { return table.at(i); });
    const Index done = whole * lanes;
    if (done < width)
      for (Index i = 0; i < n; ++i)
        write_first(static_cast<int>(width - done), at + i * task.row + done, table.at(done));
  }

  void write_columns(const Part& part) const {
    Index row = first_row(task, part.chunk);
    const Index end = first_row(task, part.chunk + 1);
    const Index rest = part.chunk + 1 == task.chunks ? task.rest : 0;
    const bool all = part.last_channel - part.first_channel == task.channels;
    if (streaming && all) return write_span(row * task.row, end * task.row + rest, 0);
    const Index column = part.first_channel * task.inner;
    const Index width = all ? task.row : (part.last_channel - part.first_channel) * task.inner;
    if constexpr (streaming) {
      for (; row < end; ++row)
        write_span(row * task.row + column, row * task.row + column + width, column);
    } else {
      // Long rows are better read one by one, in memory's order.
      if (task.row * static_cast<Index>(sizeof(T)) <= 1024)
        for (; row + 4 <= end; row += 4) write_rows<4>(row, column, width);
      for (; row < end; ++row) write_rows<1>(row, column, width);
      if (rest > 0) write_rows<1>(row, 0, rest);
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
        const Index whole = (plane_end - at) / lanes;
        write(whole, at, [k](Index) { return k; });
        at += whole * lanes;
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
          const Coefficients mixed = select_first(n, k, next);
          write(1, at, [mixed](Index) { return mixed; });
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
constexpr Kernels kernels_of{lanes, fill_pivot, sums<T>, finish, write<T>, fence};

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
