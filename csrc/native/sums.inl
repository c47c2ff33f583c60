#pragma once

// Sums of terms: of the weights, and of the products of weight and distance.

#include "formulas.inl"
#include "kernels.hpp"
#include "pairs.hpp"
#include "simd.hpp"

namespace onedsl::native::ONEDSL_ISA {
namespace {

// f32 holds the sums of so many rows of columns, or pairs of vectors of a long plane, then f64
// takes over.
constexpr int terms_in_f32 = 8;

struct Sums {
  Vec weights;
  Vec products;
};

inline Sums operator+(const Sums& a, const Sums& b) {
  return {a.weights + b.weights, a.products + b.products};
}

struct PairSums {
  VecPair weights{};
  VecPair products{};

  void add(const PairTerms& terms) {
    weights = {weights.a + terms.a.weight, weights.b + terms.b.weight};
    products = {multiply_add(terms.a.weight, terms.a.distance, products.a),
                multiply_add(terms.b.weight, terms.b.distance, products.b)};
  }
  void add(const Terms& terms) {
    weights.a = weights.a + terms.weight;
    products.a = multiply_add(terms.weight, terms.distance, products.a);
  }
  Sums a() const { return {weights.a, products.a}; }
  Sums b() const { return {weights.b, products.b}; }
};

// Adds f32 sums to those in memory, in either type.
inline void add_to(float* weights, float* products, const Sums& sums) {
  store(weights, load(weights) + sums.weights);
  store(products, load(products) + sums.products);
}
inline void add_to(double* weights, double* products, const Sums& sums) {
  store_doubles(weights, load_doubles(weights) + widen(sums.weights));
  store_doubles(products, load_doubles(products) + widen(sums.products));
}

inline void put(const Part& part, double& partial, const double sum) {
  partial = part.adds_to_partial ? partial + sum : sum;
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
