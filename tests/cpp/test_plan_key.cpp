#include <cmath>
#include <limits>
#include <set>

#include "check.hpp"
#include "plan/key.hpp"
#include "tests.hpp"

namespace onedsl::test {
namespace {

PlanKey key_with(const Attributes& attributes) {
  OpConfig config;
  config.operation = Operation::relu_forward_training;
  config.attributes = attributes;
  const OutputSet outputs = signature_of(config.operation).outputs;
  return make_key(config, Geometry{4, 3, 1}, DataType::f32, DataType::f32, {}, outputs);
}

}  // namespace

// Operators with other attributes have plans of their own.
void test_plan_key() {
  constexpr double no_clip = std::numeric_limits<double>::infinity();
  std::set<PlanKey> keys;
  std::size_t operators = 0;
  for (const double epsilon : {1e-5, 1e-3}) {
    for (const double momentum : {0.1, 0.5, 0.9}) {
      for (const double clip : {1.0, 6.0, no_clip, std::nan("")}) {
        keys.insert(key_with({epsilon, momentum, clip}));
        ++operators;
      }
    }
  }
  check(keys.size() == operators, keys.size(), " keys of ", operators, " operators");
}

}  // namespace onedsl::test
