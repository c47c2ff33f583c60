#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/convert_16bit.hpp"
#include "core/types.hpp"

namespace onedsl::test {

inline double load_value(const DataType type, const std::byte* const memory) {
  if (type == DataType::f32) {
    float value = 0;
    std::memcpy(&value, memory, sizeof value);
    return static_cast<double>(value);
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, memory, sizeof bits);
  return static_cast<double>(type == DataType::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits));
}

inline void store_value(const DataType type, std::byte* const memory, const double value) {
  const auto single = static_cast<float>(value);
  if (type == DataType::f32) {
    std::memcpy(memory, &single, sizeof single);
    return;
  }
  const std::uint16_t bits = type == DataType::bf16 ? f32_to_bf16(single) : f32_to_f16(single);
  std::memcpy(memory, &bits, sizeof bits);
}

// A tensor that begins `shift` elements after the start of a cache line, between guard bytes that
// reveal writes outside of the tensor.
class Tensor {
 public:
  Tensor(const DataType type, const std::int64_t count, const std::int64_t shift)
      : type_(type),
        size_(size_of(type)),
        count_(static_cast<std::size_t>(count)),
        shift_(static_cast<std::size_t>(shift)),
        memory_(count_ * size_ + 4 * line, guard) {
    begin_ = begin_of_data();
  }
  // A copy has memory of its own with the same shift.
  Tensor(const Tensor& other)
      : Tensor(other.type_, static_cast<std::int64_t>(other.count_),
               static_cast<std::int64_t>(other.shift_)) {
    copy_from(other);
  }
  Tensor(Tensor&&) noexcept = default;
  Tensor& operator=(const Tensor&) = delete;
  Tensor& operator=(Tensor&&) noexcept = default;
  ~Tensor() = default;

  std::size_t count() const { return count_; }
  std::byte* data() { return memory_.data() + begin_; }
  const std::byte* data() const { return memory_.data() + begin_; }
  double operator[](const std::size_t i) const { return load_value(type_, data() + i * size_); }
  void set(const std::size_t i, const double value) {
    store_value(type_, data() + i * size_, value);
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

  std::size_t begin_of_data() const {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    return line + (line - address % line) + shift_ * size_;
  }

  DataType type_;
  std::size_t size_;
  std::size_t count_;
  std::size_t shift_;
  std::vector<std::byte> memory_;
  std::size_t begin_ = 0;
};

}  // namespace onedsl::test
