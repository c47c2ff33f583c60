#pragma once

// Copies of matrices between a tensor of any strides and dense memory.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "coefficient_tables.inl"
#include "kernels.hpp"
#include "vector.hpp"

namespace onedsl::native::ONEDSL_ISA {
namespace {

template <class T, int n>
struct SquareRow {
  typedef T Type __attribute__((vector_size(sizeof(T) * n)));
};

template <class V, std::size_t... i>
inline V interleave(const V a, const V b, const std::size_t from, std::index_sequence<i...>) {
  constexpr std::size_t n = sizeof...(i);
  if (from == 0) return __builtin_shufflevector(a, b, (i / 2 + i % 2 * n)...);
  return __builtin_shufflevector(a, b, (n / 2 + i / 2 + i % 2 * n)...);
}

// Transposes a square matrix: `from` has rows of neighboring elements, and `to` has columns.
template <class T, int n>
[[gnu::flatten]] inline void transpose_square(const T* const from, const Index from_row,
                                              T* const to, const Index to_column) {
  using V = typename SquareRow<T, n>::Type;
  using Indices = std::make_index_sequence<n>;
  V rows[n];
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i) std::memcpy(&rows[i], from + i * from_row, sizeof(V));
#pragma GCC unroll 4
  for (int step = 1; step < n; step *= 2) {
    V next[n];
#pragma GCC unroll 16
    for (int i = 0; i < n / 2; ++i) {
      next[2 * i] = interleave(rows[i], rows[i + n / 2], 0, Indices{});
      next[2 * i + 1] = interleave(rows[i], rows[i + n / 2], 1, Indices{});
    }
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) rows[i] = next[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i) std::memcpy(to + i * to_column, &rows[i], sizeof(V));
}

template <class T>
void copy_elements(const Copy& copy) {
  const T* const from = static_cast<const T*>(copy.from);
  T* const to = static_cast<T*>(copy.to);
  for (Index i = 0; i < copy.rows; ++i) {
    for (Index j = 0; j < copy.columns; ++j) {
      to[i * copy.to_row + j * copy.to_column] = from[i * copy.from_row + j * copy.from_column];
    }
  }
}

// The last squares overlap those before them: their elements are copied twice.
template <class T, int n>
void transpose_in_squares(const Copy& copy) {
  const T* const from = static_cast<const T*>(copy.from);
  T* const to = static_cast<T*>(copy.to);
  const auto at = [&](Index i, Index j) {
    i = minimum(i, copy.rows - n);
    j = minimum(j, copy.columns - n);
    transpose_square<T, n>(from + i * copy.from_row + j, copy.from_row, to + i + j * copy.to_column,
                           copy.to_column);
  };
  // Along the neighbors in the tensor, so that its lines are read or written one after the other.
  // The next ones are prefetched: the CPU's own prefetching does not follow so many.
  if (copy.to_tensor) {
    for (Index j = 0; j < copy.columns; j += n) {
      for (Index i = 0; i < copy.rows; i += n) {
        if (copy.to_next != 0) {
          for (Index k = j; k < j + n; ++k) prefetch(to, i + k * copy.to_column + copy.to_next, 1);
        }
        at(i, j);
      }
    }
  } else {
    for (Index i = 0; i < copy.rows; i += n) {
      for (Index j = 0; j < copy.columns; j += n) {
        if (copy.to_next != 0) {
          for (Index k = i; k < i + n; ++k) prefetch(from, k * copy.from_row + j + copy.to_next, 1);
        }
        at(i, j);
      }
    }
  }
}

template <class T>
void transpose(const Copy& copy) {
  constexpr Index least = 16 / sizeof(T);
  constexpr Index most = sizeof(Vec) / sizeof(T) < 16 ? sizeof(Vec) / sizeof(T) : 16;
  const Index size = minimum(copy.rows, copy.columns);
  if (size >= most) return transpose_in_squares<T, most>(copy);
  if constexpr (most > 2 * least) {
    if (size >= 2 * least) return transpose_in_squares<T, 2 * least>(copy);
  }
  if (size >= least) return transpose_in_squares<T, least>(copy);
  copy_elements<T>(copy);
}

// Copies rows of neighbors by vectors, the last of which overlaps the one before it.
template <class T>
void copy_rows(const Copy& copy) {
  const Index bytes = copy.columns * static_cast<Index>(sizeof(T));
  const auto* const from = static_cast<const T*>(copy.from);
  auto* const to = static_cast<T*>(copy.to);
  constexpr auto vector_bytes = static_cast<Index>(sizeof(Vec));
  if (bytes < vector_bytes) return copy_elements<T>(copy);
  for (Index i = 0; i < copy.rows; ++i) {
    const T* const row = from + i * copy.from_row;
    if (copy.to_next != 0) {
      prefetch(copy.to_tensor ? to + i * copy.to_row : row, copy.to_next, copy.columns);
    }
    const auto* const source = reinterpret_cast<const char*>(row);
    auto* const target = reinterpret_cast<char*>(to + i * copy.to_row);
    const auto copy_vector = [&](const Index at) {
      Words words;
      std::memcpy(&words, source + at, sizeof words);
      std::memcpy(target + at, &words, sizeof words);
    };
#pragma GCC unroll 4
    for (Index at = 0; at < bytes - vector_bytes; at += vector_bytes) copy_vector(at);
    copy_vector(bytes - vector_bytes);
  }
}

template <class T>
void copy_as(const Copy& copy) {
  if (copy.from_column == 1 && copy.to_column == 1) {
    copy_rows<T>(copy);
  } else if (copy.from_column == 1 && copy.to_row == 1) {
    transpose<T>(copy);
  } else {
    copy_elements<T>(copy);
  }
}

inline void copy_matrix(const Copy& copy, const DataType type) {
  if (type == DataType::f32) {
    copy_as<std::uint32_t>(copy);
  } else {
    copy_as<std::uint16_t>(copy);
  }
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
