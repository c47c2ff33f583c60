#pragma once

#include <cstddef>
#include <vector>

#include "ports.hpp"
#include "types.hpp"

namespace onedsl {

// Converts 16-bit statistics to f32 for a run, and the resulting statistics back.
class F32Statistics {
 public:
  // `count` is the length of each statistic.
  F32Statistics(const Ports& ports, DataType type, std::size_t count);

  // Return the ports with the caller's tensors and statistics in f32.
  const Ports& ports() const noexcept { return f32_ports_; }

  // Round the resulting statistics to the caller's type and write them to the caller's memory.
  void write_results() const;

 private:
  Ports ports_;
  Ports f32_ports_;
  DataType type_;
  std::size_t count_;
  std::vector<float> values_;
};

}  // namespace onedsl
