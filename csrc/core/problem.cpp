#include "problem.hpp"

#include <tuple>

namespace onedsl {

bool operator==(const Problem& a, const Problem& b) noexcept {
  const auto attributes = [](const Problem& p) {
    return std::tie(p.operation, p.geometry, p.data, p.statistics, p.variance_kind,
                    p.attributes.epsilon, p.attributes.momentum, p.attributes.clip,
                    p.optional_tensors, p.outputs, p.pass);
  };
  return attributes(a) == attributes(b);
}

}  // namespace onedsl
