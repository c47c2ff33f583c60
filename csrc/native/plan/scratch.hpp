#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>

#include "../../core/types.hpp"
#include "../kernels/summation_order.hpp"

namespace onedsl::native {

// Memory for the sums and coefficients of one run, on the stack for small problems. No two arrays
// share a cache line.
class Scratch {
 public:
  // `bytes` must be at least the sum of bytes_for() of all arrays.
  explicit Scratch(const std::size_t bytes) {
    if (bytes <= sizeof local_) return;
    heap_.reset(static_cast<std::byte*>(std::aligned_alloc(cache_line, round_up_to_lines(bytes))));
    if (!heap_) throw std::bad_alloc();
    next_ = heap_.get();
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Return an uninitialized array.
  template <class T>
  T* allocate(const Index count) {
    static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= cache_line);
    auto* const first = reinterpret_cast<T*>(next_);
    std::uninitialized_default_construct_n(first, count);
    next_ += bytes_for<T>(count);
    return std::launder(first);
  }

  template <class T>
  static constexpr std::size_t bytes_for(const Index count) {
    return round_up_to_lines(static_cast<std::size_t>(count) * sizeof(T));
  }

 private:
  static constexpr std::size_t round_up_to_lines(const std::size_t bytes) {
    return (bytes + cache_line - 1) / cache_line * cache_line;
  }

  struct Free {
    void operator()(std::byte* const memory) const noexcept { std::free(memory); }
  };

  alignas(cache_line) std::byte local_[160 * cache_line];
  std::unique_ptr<std::byte, Free> heap_;
  std::byte* next_ = local_;
};

}  // namespace onedsl::native
