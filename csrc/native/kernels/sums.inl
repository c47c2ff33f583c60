#pragma once

// Sums of factors, and of products factor * deviation (see Terms in formulas.inl).

#include "formulas.inl"
#include "kernels.hpp"
#include "vector.hpp"
#include "vector_pair.hpp"

namespace onedsl::native::ONEDSL_ISA {
namespace {

struct VectorSums {
  Vec factors;
  Vec products;
};

inline VectorSums operator+(const VectorSums& a, const VectorSums& b) {
  return {a.factors + b.factors, a.products + b.products};
}

struct PairSums {
  VecPair factors{};
  VecPair products{};

  void add(const PairTerms& terms) {
    factors = {factors.a + terms.a.factor, factors.b + terms.b.factor};
    products = {multiply_add(terms.a.factor, terms.a.deviation, products.a),
                multiply_add(terms.b.factor, terms.b.deviation, products.b)};
  }
  void add(const Terms& terms) {
    factors.a = factors.a + terms.factor;
    products.a = multiply_add(terms.factor, terms.deviation, products.a);
  }
  VectorSums a() const { return {factors.a, products.a}; }
  VectorSums b() const { return {factors.b, products.b}; }
};

// Add f32 sums to those in memory.
inline void add_to(float* factors, float* products, const VectorSums& sums) {
  store(factors, load(factors) + sums.factors);
  store(products, load(products) + sums.products);
}
inline void add_to(double* factors, double* products, const VectorSums& sums) {
  store_doubles(factors, load_doubles(factors) + widen(sums.factors));
  store_doubles(products, load_doubles(products) + widen(sums.products));
}

}  // namespace
}  // namespace onedsl::native::ONEDSL_ISA
