#pragma once

// Copies of blocks between a tensor of any strides and dense memory.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels.hpp"
#include "vector.hpp"

namespace onedsl::native::ONEDSL_ISA {
namespace {

// As many elements as a vector has, at most 16: a block of as many vectors fits the registers.
template <class T>
constexpr int block_size = sizeof(Vec) / sizeof(T) < 16 ? sizeof(Vec) / sizeof(T) : 16;
template <class T>
struct BlockRow {
  typedef T Type __attribute__((vector_size(sizeof(T) * block_size<T>)));
};

template <class V, std::size_t... i>
inline V interleave(const V a, const V b, const std::size_t from, std::index_sequence<i...>) {
  constexpr std::size_t n = sizeof...(i);
  if (from == 0) return __builtin_shufflevector(a, b, (i / 2 + i % 2 * n)...);
  return __builtin_shufflevector(a, b, (n / 2 + i / 2 + i % 2 * n)...);
}

// Transposes a block: `from` has rows of neighboring elements, and `to` has columns.
template <class T>
[[gnu::flatten]] inline void transpose_block(const T* const from, const Index from_row, T* const to,
                                             const Index to_column) {
  constexpr int n = block_size<T>;
  using V = typename BlockRow<T>::Type;
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
inline void copy_elements(const Copy& copy, const Range& rows, const Range& columns) {
  const T* const from = static_cast<const T*>(copy.from);
  T* const to = static_cast<T*>(copy.to);
  for (Index i = rows.begin; i < rows.end; ++i) {
    for (Index j = columns.begin; j < columns.end; ++j) {
      to[i * copy.to_row + j * copy.to_column] = from[i * copy.from_row + j * copy.from_column];
    }
  }
}

template <class T>
void transpose(const Copy& copy) {
  constexpr Index n = block_size<T>;
  const T* const from = static_cast<const T*>(copy.from);
  T* const to = static_cast<T*>(copy.to);
  const Index rows = copy.rows / n * n;
  const Index columns = copy.columns / n * n;
  const auto at = [&](const Index i, const Index j) {
    transpose_block<T>(from + i * copy.from_row + j, copy.from_row, to + i + j * copy.to_column,
                       copy.to_column);
  };
  // Along the neighbors in the tensor, so that its lines are read or written one after the other.
  if (copy.to_tensor) {
    for (Index j = 0; j < columns; j += n) {
      for (Index i = 0; i < rows; i += n) at(i, j);
    }
  } else {
    for (Index i = 0; i < rows; i += n) {
      for (Index j = 0; j < columns; j += n) at(i, j);
    }
  }
  copy_elements<T>(copy, {rows, copy.rows}, {0, copy.columns});
  copy_elements<T>(copy, {0, rows}, {columns, copy.columns});
}

template <class T>
void copy_as(const Copy& copy) {
  if (copy.from_column == 1 && copy.to_column == 1) {
    for (Index i = 0; i < copy.rows; ++i) {
      std::memcpy(static_cast<T*>(copy.to) + i * copy.to_row,
                  static_cast<const T*>(copy.from) + i * copy.from_row,
                  static_cast<std::size_t>(copy.columns) * sizeof(T));
    }
  } else if (copy.from_column == 1 && copy.to_row == 1) {
    transpose<T>(copy);
  } else {
    copy_elements<T>(copy, {0, copy.rows}, {0, copy.columns});
  }
}

inline void copy_block(const Copy& copy, const DataType type) {
  if (type == DataType::f32) {
    copy_as<std::uint32_t>(copy);
  } else {
    copy_as<std::uint16_t>(copy);
  }
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
