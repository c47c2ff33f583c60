#pragma once

#include "geometry.hpp"
#include "types.hpp"

namespace onedsl {

// What is to be computed, with the shape of the caller's tensors already reduced to a Geometry.
struct Problem {
  Geometry geometry;
  DataType data = DataType::f32;
  Statistics statistics = Statistics::batch;
  double epsilon = 0;
  bool sums = true;  // whether diff_gamma and diff_beta are wanted
};

// The ports of one run, with the statistics in f32 (the plan widens narrower ones). gamma may be
// null: ones. diff_gamma and diff_beta may be null together: not wanted. diff_src may be exactly
// diff_dst; nothing else overlaps.
struct Arguments {
  const void* src = nullptr;
  const void* diff_dst = nullptr;
  const float* mean = nullptr;
  const float* variance = nullptr;
  const float* gamma = nullptr;
  void* diff_src = nullptr;
  float* diff_gamma = nullptr;
  float* diff_beta = nullptr;
};

}  // namespace onedsl
