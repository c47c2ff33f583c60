#pragma once

#include <cstddef>
#include <vector>

#include "ports.hpp"
#include "types.hpp"

namespace onedsl {

// Ports whose statistics are f32, for a caller's that are of a narrower type.
class F32Statistics {
 public:
  F32Statistics(const Ports& narrow, DataType type, std::size_t statistics);

  const Ports& ports() const noexcept { return wide_; }

  // Rounds the results into the caller's own memory.
  void narrow_results() const;

 private:
  Ports narrow_;
  Ports wide_;
  DataType type_;
  std::size_t statistics_;
  std::vector<float> values_;
};

}  // namespace onedsl
