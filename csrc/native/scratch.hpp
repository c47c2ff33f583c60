#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>

#include "summation_order.hpp"

namespace onedsl::native {

// Memory for the sums and coefficients of one run, in cache lines of its own for each array. That
// of a small problem is on the stack.
class Scratch {
 public:
  explicit Scratch(const std::size_t bytes) {
    if (bytes <= sizeof local_) return;
    heap_.reset(static_cast<std::byte*>(std::aligned_alloc(line, whole_lines(bytes))));
    if (!heap_) throw std::bad_alloc();
    next_ = heap_.get();
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // An array whose values are not set. All of them together take what bytes_for() says of each.
  template <class T>
  T* take(const Index count) {
    static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= line);
    auto* const first = reinterpret_cast<T*>(next_);
    std::uninitialized_default_construct_n(first, count);
    next_ += bytes_for<T>(count);
    return std::launder(first);
  }

  template <class T>
  static constexpr std::size_t bytes_for(const Index count) {
    return whole_lines(static_cast<std::size_t>(count) * sizeof(T));
  }

 private:
  static constexpr std::size_t line = 64;
  static constexpr std::size_t whole_lines(const std::size_t bytes) {
    return (bytes + line - 1) / line * line;
  }

  struct Free {
    void operator()(std::byte* const memory) const noexcept { std::free(memory); }
  };

  alignas(line) std::byte local_[160 * line];
  std::unique_ptr<std::byte, Free> heap_;
  std::byte* next_ = local_;
};

}  // namespace onedsl::native
