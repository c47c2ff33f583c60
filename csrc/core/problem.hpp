#pragma once

#include <limits>
#include <memory>
#include <utility>

#include "geometry.hpp"
#include "layout.hpp"
#include "operation.hpp"
#include "ports.hpp"
#include "types.hpp"

namespace onedsl {

// Numeric attributes of an operation.
struct Attributes {
  double epsilon = 0;
  // running = momentum * running + (1 - momentum) * batch, or the batch's if there are none before
  // it. 0.5 is oneDNN's value for an op without this attribute.
  double momentum = 0.5;
  // Upper bound of the ReLU: 6 for ReLU6.
  double clip = std::numeric_limits<double>::infinity();
};

// Numbers between these limits are positive and finite in f32, oneDNN's type of epsilon. Unlike a
// conversion, the limits do not depend on the rounding mode and on whether subnormal numbers are
// flushed.
inline constexpr std::pair<double, double> epsilon_limits(0x1p-150, 0x1.ffffffp127);

inline bool is_valid_epsilon(const double epsilon) noexcept {
  return epsilon_limits.first < epsilon && epsilon < epsilon_limits.second;
}

// A configured operation: everything that does not depend on the arrays.
struct OpConfig {
  Operation operation = Operation::training_backward;
  Attributes attributes;
  Statistics statistics = Statistics::batch;
  VarianceKind variance_kind = VarianceKind::variance;
  Pass pass = Pass::both;

  bool reads_epsilon() const noexcept {
    return signature_of(operation).is_forward() || variance_kind == VarianceKind::variance;
  }
};

// A computation on tensors of one shape.
struct Problem : OpConfig {
  Geometry geometry;
  DataType data = DataType::f32;
  DataType statistics_type = DataType::f32;
  InputSet inputs;    // that the call passes
  OutputSet outputs;  // to compute
  // Null: every tensor is dense in the memory order of src.
  std::shared_ptr<const Layouts> layouts = nullptr;
};

}  // namespace onedsl
