#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include "types.hpp"

namespace onedsl {

// The memory of an array: the addresses of its first byte and of the one after its last.
struct Memory {
  std::uintptr_t begin = 0, end = 0;

  constexpr bool meets(const Memory& other) const noexcept {
    return begin < end && other.begin < other.end && begin < other.end && other.begin < end;
  }
};

// Return the absolute value of a stride. std::abs overflows for the lowest one.
constexpr std::size_t magnitude(const std::ptrdiff_t stride) noexcept {
  const auto bits = static_cast<std::size_t>(stride);
  return stride < 0 ? 0 - bits : bits;
}

constexpr std::ptrdiff_t max_rank = 64;  // NumPy's limit

constexpr std::size_t unknown_bytes = std::numeric_limits<std::size_t>::max();

// An array of any library. Borrowed: valid as long as the array.
struct View {
  DataType type = DataType::f32;
  char* data = nullptr;
  std::ptrdiff_t rank = 0;
  const std::ptrdiff_t* shape = nullptr;
  const std::ptrdiff_t* strides = nullptr;
  std::ptrdiff_t item_stride = 1;  // of adjacent items: 1, or in NumPy the size of an item
  std::size_t bytes_from_data = unknown_bytes;  // that may be read
  bool writeable = false;
  bool is_numpy = false;

  std::ptrdiff_t size() const noexcept;
  std::size_t bytes() const noexcept;  // of a dense array
  bool is_aligned() const noexcept;    // to its items; empty arrays are, as in NumPy
  // Return nullopt for memory that cannot exist, because offsets overflow.
  std::optional<Memory> memory() const noexcept;
  // Return whether memory after `data` is readable as far as known.
  bool holds(const Memory& range) const noexcept {
    return range.begin == range.end ||
           range.end - reinterpret_cast<std::uintptr_t>(data) <= bytes_from_data;
  }
  bool is_c_contiguous() const noexcept;
  bool same_shape(const View& other) const noexcept;    // and type
  bool same_strides(const View& other) const noexcept;  // of arrays of the same shape
  bool same_memory(const View& other) const noexcept;   // of each element
  // Return whether two elements share a byte. True if this is hard to decide: arrays in the gaps of
  // each other should have strides that divide each other.
  bool overlaps(const View& other) const noexcept;
};

}  // namespace onedsl
