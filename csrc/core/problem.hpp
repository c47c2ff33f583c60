#pragma once

#include <limits>

#include "geometry.hpp"
#include "operation.hpp"
#include "ports.hpp"
#include "types.hpp"

namespace onedsl {

// The op's numbers.
struct Attributes {
  double epsilon = 0;
  // running = momentum * running + (1 - momentum) * batch; without the attribute oneDNN takes 0.5.
  double momentum = 0.5;
  // A ReLU's upper bound: 6 for ReLU6.
  double clip = std::numeric_limits<double>::infinity();
};

// What is to be computed, with the shape of the caller's tensors already reduced to a Geometry.
//
// A backend runs it on Ports whose statistics are f32, which the plan sees to. Nothing overlaps,
// but the pair that the op's signature allows may be exactly the same memory.
struct Problem {
  Operation operation = Operation::training_backward;
  Geometry geometry;
  DataType data = DataType::f32;
  Statistics statistics = Statistics::batch;
  VarianceKind variance_kind = VarianceKind::variance;
  Attributes attributes;
  InputSet optional_tensors;  // those that are given
  OutputSet outputs;
  Pass pass = Pass::both;
};

bool operator==(const Problem& a, const Problem& b) noexcept;

}  // namespace onedsl
