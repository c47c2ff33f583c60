#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "core/convert_16bit.hpp"
#include "core/types.hpp"

namespace onedsl::test {

// A tensor that begins `shift` elements after the start of a cache line, between guard bytes that
// reveal writes outside of the tensor.
class Tensor {
 public:
  Tensor(const DataType type, const std::int64_t count, const std::int64_t shift)
      : type_(type),
        size_(size_of(type)),
        count_(static_cast<std::size_t>(count)),
        memory_(count_ * size_ + 4 * line, guard) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    begin_ = line + (line - address % line) + static_cast<std::size_t>(shift) * size_;
  }
  std::size_t count() const { return count_; }
  std::byte* data() { return memory_.data() + begin_; }
  const std::byte* data() const { return memory_.data() + begin_; }
  void set(const std::size_t i, const double value) {
    const auto single = static_cast<float>(value);
    if (type_ == DataType::f32) {
      std::memcpy(data() + i * size_, &single, sizeof single);
      return;
    }
    const std::uint16_t bits = type_ == DataType::bf16 ? f32_to_bf16(single) : f32_to_f16(single);
    std::memcpy(data() + i * size_, &bits, sizeof bits);
  }
  void copy_from(const Tensor& other) { std::memcpy(data(), other.data(), count_ * size_); }

  bool same_bits(const Tensor& other) const {
    return count_ == other.count_ && std::memcmp(data(), other.data(), count_ * size_) == 0;
  }
  bool guards_intact() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      const bool outside = i < begin_ || i >= begin_ + count_ * size_;
      if (outside && memory_[i] != guard) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t line = 64;
  static constexpr std::byte guard{0xa5};

  DataType type_;
  std::size_t size_;
  std::size_t count_;
  std::vector<std::byte> memory_;
  std::size_t begin_ = 0;
};

// The elements of a tensor at the offsets of a layout, in memory whose other bytes are guards.
class StridedTensor {
 public:
  // The offsets are those of the elements of a dense tensor in its order. Several may be equal.
  StridedTensor(const Tensor& dense, const DataType type, std::vector<std::int64_t> offsets)
      : offsets_(std::move(offsets)), bytes_(size_of(type)) {
    const auto [least, most] = std::minmax_element(offsets_.begin(), offsets_.end());
    first_ = *least;
    memory_ = std::make_unique<Tensor>(type, *most - *least + 1, *least & 7);
    std::memset(memory_->data(), 0xa5, memory_->count() * bytes_);
    untouched_ = std::vector<bool>(memory_->count(), true);
    for (std::size_t i = 0; i < offsets_.size(); ++i) {
      std::memcpy(at(i), dense.data() + i * bytes_, bytes_);
      untouched_[index(i)] = false;
    }
  }
  std::byte* data() { return memory_->data() - first_ * static_cast<std::int64_t>(bytes_); }
  void copy_to(Tensor& dense) {
    for (std::size_t i = 0; i < offsets_.size(); ++i) {
      std::memcpy(dense.data() + i * bytes_, at(i), bytes_);
    }
  }
  bool guards_intact() const {
    for (std::size_t i = 0; i < untouched_.size() * bytes_; ++i) {
      if (untouched_[i / bytes_] && memory_->data()[i] != std::byte{0xa5}) return false;
    }
    return memory_->guards_intact();
  }

 private:
  std::size_t index(const std::size_t i) const {
    return static_cast<std::size_t>(offsets_[i] - first_);
  }
  std::byte* at(const std::size_t i) { return memory_->data() + index(i) * bytes_; }

  std::vector<std::int64_t> offsets_;
  std::size_t bytes_;
  std::int64_t first_ = 0;
  std::unique_ptr<Tensor> memory_;
  std::vector<bool> untouched_;
};

}  // namespace onedsl::test
