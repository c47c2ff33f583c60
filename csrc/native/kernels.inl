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

// Sums over every other vector, or every other element.
struct TwoSums {
  Two beta{};
  Two gamma{};

  void add(const Two& x, const Two& d, const Two& mean) {
    beta = {beta.a + d.a, beta.b + d.b};
    gamma = {multiply_add(d.a, x.a - mean.a, gamma.a), multiply_add(d.b, x.b - mean.b, gamma.b)};
  }
};

// The lanes past the first n add nothing, whatever the mean.
template <class T>
inline Sums sum_first(int n, const T* src, const T* diff_dst, Vec mean) {
  const Vec d = load_first(n, diff_dst);
  return {d, d * (select_first(n, load_first(n, src), mean) - mean)};
}

// f32 holds the sums of so many vectors, then f64 takes over.
constexpr int tile = 8;

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

// ---- Tables ----

// Where a table keeps an entry: those of columns are in Two's order from any column on, which puts
// all even entries before all odd ones if that order does so.
template <class T>
inline Index slot(const Task& task, Index entry) {
  if constexpr (!split_in_two<T>) return entry;
  return task.columns ? entry / 2 + entry % 2 * (task.entries / 2) : entry;
}

// A table of columns from one entry on.
template <class T>
struct TwoTable {
  const float* a;
  const float* b;

  TwoTable(const Task& task, const float* table, Index entry)
      : a(table + slot<T>(task, entry)),
        b(split_in_two<T> ? table + slot<T>(task, entry + 1) : a + lanes) {}

  // For two vectors, from the i-th of the columns on: i is even.
  Two at(Index i) const {
    const Index step = split_in_two<T> ? i / 2 : i;
    return {load(a + step), load(b + step)};
  }
};

// ---- Sums over columns ----

// So many runs of rows are read side by side: memory answers more of them at a time than one, and
// the sums in cache are read and written once for all.
constexpr int runs = 4;

// Columns [0, width) of n rows, `stride` apart, are added to f32 sums. Lanes past them add zero.
template <int n, class T>
void sum_rows(const T* src, const T* diff_dst, Index stride, const TwoTable<T>& mean, Index width,
              float* beta, float* gamma) {
  const auto add = [&](Index j, const auto& load_at) {
    const Two m = mean.at(j);
    TwoSums sums;
    for (int k = 0; k < n; ++k)
      sums.add(load_at(src + k * stride + j), load_at(diff_dst + k * stride + j), m);
    store(beta + j, load(beta + j) + sums.beta.a);
    store(beta + j + lanes, load(beta + j + lanes) + sums.beta.b);
    store(gamma + j, load(gamma + j) + sums.gamma.a);
    store(gamma + j + lanes, load(gamma + j + lanes) + sums.gamma.b);
  };
  Index j = 0;
  for (; j + 2 * lanes <= width; j += 2 * lanes) add(j, [](const T* p) { return load_two(p); });
  if (const int rest = static_cast<int>(width - j); rest > 0)
    add(j, [rest](const T* p) { return load_two_first(rest, p); });
}

// Moves f32 sums over to f64 ones.
inline void flush(Index count, float* narrow, double* wide) {
  for (Index j = 0; j < count; j += lanes) {
    store_wide(wide + j, load_wide(wide + j) + widen(load(narrow + j)));
    store(narrow + j, broadcast(0));
  }
}

// Rows of this width are summed in registers.
constexpr int narrow_row = 8 * lanes;

// `tile` narrow rows are added to f64 sums.
template <class T>
void sum_narrow_rows(const T* src, const T* diff_dst, Index stride, const TwoTable<T>& mean,
                     double* beta, double* gamma) {
  constexpr int twos = narrow_row / (2 * lanes);
  TwoSums sums[twos];
  for (int row = 0; row < tile; ++row, src += stride, diff_dst += stride) {
#pragma GCC unroll 4
    for (int i = 0; i < twos; ++i) {
      const Index j = i * 2 * lanes;
      sums[i].add(load_two(src + j), load_two(diff_dst + j), mean.at(j));
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < twos; ++i) {
    const auto add = [&](Index j, const Sums& part) {
      WideSums wide = load_sums(beta + j, gamma + j);
      wide.add(part);
      store_sums(beta + j, gamma + j, wide);
    };
    add(i * 2 * lanes, {sums[i].beta.a, sums[i].gamma.a});
    add(i * 2 * lanes + lanes, {sums[i].beta.b, sums[i].gamma.b});
  }
}

// Brings sums from Two's order into that of the columns.
template <class T>
void put_in_order(Index padded, double* __restrict sums, double* __restrict spare) {
  if constexpr (!split_in_two<T>) return;
  std::memcpy(spare, sums, static_cast<std::size_t>(padded) * sizeof(double));
  for (Index j = 0; j < padded; j += 2 * lanes)
    for (int i = 0; i < lanes; ++i) {
      sums[j + 2 * i] = spare[j + i];
      sums[j + 2 * i + 1] = spare[j + lanes + i];
    }
}

// Adds the columns of each channel up: those of one position after the other.
inline void put_channels(const Task& task, const Part& part, double* __restrict sums,
                         double* __restrict partial) {
  const Index position = task.channels * task.inner;
  for (Index k = 1; k < task.repeat; ++k)
    for (Index j = 0; j < position; ++j) sums[j] += sums[k * position + j];
  const Index count = part.last_channel - part.first_channel;
  const Index inner = task.inner;
  for (Index c = 0; inner > 1 && c < count; ++c) {
    double sum = 0;
    for (Index i = 0; i < inner; ++i) sum += sums[c * inner + i];
    sums[c] = sum;
  }
  partial += part.first_channel;
  if (part.more)
    for (Index c = 0; c < count; ++c) sums[c] += partial[c];
  std::memcpy(partial, sums, static_cast<std::size_t>(count) * sizeof(double));
}

template <class T>
void sum_columns(const Task& task, const Part& part, double* scratch) {
  const Index first = part.first_channel * task.inner;
  const Index last = task.repeat > 1 ? task.row : part.last_channel * task.inner;
  const Index padded = (last - first + 2 * lanes - 1) / (2 * lanes) * (2 * lanes);
  double* const beta = scratch;
  double* const gamma = beta + padded;
  float* const beta_tile = reinterpret_cast<float*>(gamma + padded);
  float* const gamma_tile = beta_tile + padded;
  std::memset(scratch, 0, static_cast<std::size_t>(padded * scratch_per_column) * sizeof(double));

  const Index begin = first_row(task, part.chunk);
  const Index end = first_row(task, part.chunk + 1);
  const T* const src = static_cast<const T*>(task.src) + first;
  const T* const diff_dst = static_cast<const T*>(task.diff_dst) + first;
  const TwoTable<T> mean(task, task.table_mean, first);
  const Index stride = task.row;
  Index row = begin;
  if (last - first == narrow_row)
    for (; row + tile <= end; row += tile)
      sum_narrow_rows(src + row * stride, diff_dst + row * stride, stride, mean, beta, gamma);
  const Index run = (end - row) / runs;
  Index added = 0;
  const auto add = [&](auto sum, Index width) {
    sum(src + row * stride, diff_dst + row * stride, run * stride, mean, width, beta_tile,
        gamma_tile);
    if (++added % tile == 0) flush(2 * padded, beta_tile, beta);
  };
  for (const Index stop = row + run; row < stop; ++row) add(sum_rows<runs, T>, last - first);
  for (row += (runs - 1) * run; row < end; ++row) add(sum_rows<1, T>, last - first);
  if (task.rest > 0 && part.chunk + 1 == task.chunks) {
    row = task.rows;
    add(sum_rows<1, T>, task.rest);
  }
  flush(2 * padded, beta_tile, beta);

  // The tiles' memory is free now.
  double* const spare = gamma + padded;
  put_in_order<T>(padded, beta, spare);
  put_in_order<T>(padded, gamma, spare);
  double* const partial = task.partial + 2 * part.partial * task.channels;
  put_channels(task, part, beta, partial);
  put_channels(task, part, gamma, partial + task.channels);
}

// ---- Sums over planes ----

template <class T>
void sum_piece(const T* src, const T* diff_dst, Index count, Vec mean, double* beta,
               double* gamma) {
  WideSums wide = load_sums(beta, gamma);
  Index i = 0;
  const auto sum = [&](Index stop) {
    TwoSums two;
    // Not unrolled: memory is read in its own order, not in one that suits the compiler.
#pragma GCC unroll 1
    for (; i < stop; i += 2 * lanes)
      two.add(load_two(src + i), load_two(diff_dst + i), {mean, mean});
    wide.add({two.beta.a + two.beta.b, two.gamma.a + two.gamma.b});
  };
  while (i + tile * lanes <= count) sum(i + tile * lanes);
  sum(i + (count - i) / (2 * lanes) * (2 * lanes));
  Sums sums{broadcast(0), broadcast(0)};
  if (i + lanes <= count) {
    sums = sum_first(lanes, src + i, diff_dst + i, mean);
    i += lanes;
  }
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
      for (Index copy = column + task.row; copy < task.entries; copy += task.row) set(copy);
    }
}

template <class T>
void fill_pivot(const Task& task) {
  for (Index c = 0; c < task.channels; ++c) {
    const float value = pivot(task, c);
    for_entries(task, c, [&](Index entry) { task.table_mean[slot<T>(task, entry)] = value; });
  }
}

inline void add_partials(const Task& task, Index channel, Index count, double* beta,
                         double* gamma) {
  const Index channels = task.channels;
  const double* partial = task.partial + channel;
  for (Index c = 0; c < count; ++c) beta[c] = gamma[c] = 0;
  for (Index k = 0; k < task.partials; ++k, partial += 2 * channels)
    for (Index c = 0; c < count; ++c) {
      beta[c] += partial[c];
      gamma[c] += partial[channels + c];
    }
}

// Some channels at a time: the partial sums of one alone lie far apart.
template <class T>
void finish(const Task& task, Index first_channel, Index last_channel) {
  constexpr Index group = 16;
  double betas[group];
  double gammas[group];
  for (Index c = first_channel; c < last_channel; ++c) {
    const Index at = (c - first_channel) % group;
    if (at == 0) add_partials(task, c, minimum(group, last_channel - c), betas, gammas);
    const double beta = betas[at];
    double gamma = gammas[at];
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
      const Index at = slot<T>(task, entry);
      task.table_mean[at] = task.mean[c];
      task.scale[at] = scale;
      task.shift[at] = shift;
      task.slope[at] = slope;
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

struct TwoCoefficients {
  Coefficients a;
  Coefficients b;
};

// The tables of columns from one entry on.
template <class T>
struct Table {
  TwoTable<T> mean;
  TwoTable<T> scale;
  TwoTable<T> shift;
  TwoTable<T> slope;

  Table(const Task& task, Index entry)
      : mean(task, task.table_mean, entry),
        scale(task, task.scale, entry),
        shift(task, task.shift, entry),
        slope(task, task.slope, entry) {}

  TwoCoefficients at(Index i) const {
    const Two m = mean.at(i), r = scale.at(i), h = shift.at(i), s = slope.at(i);
    return {{m.a, r.a, h.a, s.a}, {m.b, r.b, h.b, s.b}};
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

  static Vec gradient(const Coefficients& k, Vec x, Vec d) {
    if constexpr (batch)
      return batch_gradient(k, x, d);
    else
      return k.scale * d;
  }
  static Two gradient(const TwoCoefficients& k, const Two& x, const Two& d) {
    return {gradient(k.a, x.a, d.a), gradient(k.b, x.b, d.b)};
  }

  static void write_two(T* result, const T* x, const T* d, const TwoCoefficients& k) {
    const Two two = gradient(k, batch ? load_two(x) : Two{}, load_two(d));
    if constexpr (streaming)
      stream_two(result, two);
    else
      store_two(result, two);
  }

  // `count` times two vectors of each of n rows; coefficients(i) are those from the i-th element
  // on.
  template <int n = 1, class Of>
  void write(Index count, Index at, const Of& coefficients) const {
    // Copies: *this would be read again after every store.
    const T* const x = src + at;
    const T* const d = diff_dst + at;
    T* const result = diff_src + at;
    const Index stride = task.row;
    for (Index i = 0; i < count * 2 * lanes; i += 2 * lanes) {
      const TwoCoefficients k = coefficients(i);
      for (Index j = i; j < i + n * stride; j += stride) {
        write_two(result + j, x + j, d + j, k);
        if constexpr (n == 1) break;
      }
    }
  }

  // `count` times four vectors, two of each: all coefficients stay in registers.
  void write_by_turns(Index count, Index at, const TwoCoefficients& first,
                      const TwoCoefficients& second) const {
    const T* x = src + at;
    const T* d = diff_dst + at;
    T* result = diff_src + at;
    for (; count > 0; --count, x += 4 * lanes, d += 4 * lanes, result += 4 * lanes) {
      write_two(result, x, d, first);
      write_two(result + 2 * lanes, x + 2 * lanes, d + 2 * lanes, second);
    }
  }

  // Fewer than two vectors.
  void write_first(int n, Index at, const TwoCoefficients& k) const {
    const Two x = batch ? load_two_first(n, src + at) : Two{};
    store_two_first(n, diff_src + at, gradient(k, x, load_two_first(n, diff_dst + at)));
  }

  // At most one vector.
  void write_first(int n, Index at, const Coefficients& k) const {
    const Vec x = batch ? load_first(n, src + at) : Vec{};
    store_first(n, diff_src + at, gradient(k, x, load_first(n, diff_dst + at)));
  }

  // A whole vector.
  void write_one(Index at, const Coefficients& k) const {
    const Vec result = gradient(k, batch ? load(src + at) : Vec{}, load(diff_dst + at));
    if constexpr (streaming)
      stream(diff_src + at, result);
    else
      store(diff_src + at, result);
  }

  // Elements from `at` on before one that a non-temporal store can begin with. The tensor's own
  // type decides its alignment, so that there always is one.
  int head(Index at) const {
    if constexpr (!streaming) return 0;
    const auto address = reinterpret_cast<std::uintptr_t>(diff_src + at);
    return static_cast<int>((0 - address) % (lanes * sizeof(T)) / sizeof(T));
  }

  // The coefficients repeat every four vectors.
  bool few_columns() const { return 4 * lanes % (task.channels * task.inner) == 0; }

  // Elements [begin, end), the first of them of the given column; the table is gone through
  // cyclically.
  void write_span(Index begin, Index end, Index column) const {
    const int n = static_cast<int>(minimum(head(begin), end - begin));
    if (n > 0) write_first(n, begin, Table<T>(task, column).at(0));
    const auto advance = [&](Index count) {
      column += count;
      while (column >= task.period) column -= task.period;
    };
    advance(n);
    Index at = begin + n;
    if (few_columns()) {
      const auto next = [&] {
        const TwoCoefficients k = Table<T>(task, column).at(0);
        advance(2 * lanes);
        return k;
      };
      const TwoCoefficients first = next();
      const TwoCoefficients second = next();
      const Index run = (end - at) / (4 * lanes);
      write_by_turns(run, at, first, second);
      at += run * 4 * lanes;
    }
    while (at + 2 * lanes <= end) {
      const Index run =
          minimum((end - at) / (2 * lanes), (task.period - column - 1) / (2 * lanes) + 1);
      write(run, at, [table = Table<T>(task, column)](Index i) { return table.at(i); });
      at += run * 2 * lanes;
      advance(run * 2 * lanes);
    }
    if (at < end) write_first(static_cast<int>(end - at), at, Table<T>(task, column).at(0));
  }

  // Columns of n rows, whose coefficients are then loaded once.
  template <int n>
  void write_rows(Index row, Index column, Index width) const {
    const Table<T> table(task, column);
    const Index at = row * task.row + column;
    const Index whole = width / (2 * lanes);
    write<n>(whole, at, [table](Index i) { return table.at(i); });
    const Index done = whole * 2 * lanes;
    if (done < width)
      for (Index i = 0; i < n; ++i)
        write_first(static_cast<int>(width - done), at + i * task.row + done, table.at(done));
  }

  void write_columns(const Part& part) const {
    Index row = first_row(task, part.chunk);
    const Index end = first_row(task, part.chunk + 1);
    const Index rest = part.chunk + 1 == task.chunks ? task.rest : 0;
    const bool all = part.last_channel - part.first_channel == task.channels;
    if (all && (streaming || few_columns()))
      return write_span(row * task.row, end * task.row + rest, 0);
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
        write(whole / 2, at, [k](Index) { return TwoCoefficients{k, k}; });
        at += whole * lanes;
        if (whole % 2 != 0) write_one(at - lanes, k);
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
          write_one(at, select_first(n, k, next));
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
constexpr Kernels kernels_of{lanes, fill_pivot<T>, sums<T>, finish<T>, write<T>, fence};

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
