#include "key.hpp"

#include <functional>
#include <tuple>

#include "../core/threads.hpp"

namespace onedsl {

PlanKey make_key(const OpConfig& config, const Geometry& geometry, const DataType data,
                 const DataType statistics_type, const InputSet given, const OutputSet outputs,
                 const BackendChoice backend, const Pass pass) {
  InputSet optional_tensors;
  signature_of(config.operation).optional.for_each([&](const Input port) {
    if (is_tensor(port) && given.has(port)) optional_tensors.add(port);
  });
  return {{config, geometry, data, optional_tensors, outputs, pass},
          statistics_type,
          backend,
          max_threads(),
          fork_generation()};
}

bool operator==(const PlanKey& a, const PlanKey& b) noexcept {
  const auto parts = [](const PlanKey& key) {
    return std::tie(key.problem, key.statistics_type, key.backend, key.num_threads,
                    key.fork_generation);
  };
  return parts(a) == parts(b);
}

std::size_t PlanKeyHash::operator()(const PlanKey& key) const noexcept {
  const Problem& p = key.problem;
  std::size_t h = 0;
  const auto add = [&h](const std::size_t part) {
    h = (h ^ part) * 0x9e3779b97f4a7c15U;
    h ^= h >> 32;
  };
  for (const double part : {p.attributes.epsilon, p.attributes.momentum, p.attributes.clip}) {
    add(std::hash<double>{}(part));
  }
  for (const std::int64_t part :
       {p.geometry.outer, p.geometry.channels, p.geometry.inner,
        static_cast<std::int64_t>(p.operation), static_cast<std::int64_t>(p.data),
        static_cast<std::int64_t>(p.statistics), static_cast<std::int64_t>(p.variance_kind),
        std::int64_t{p.optional_tensors.bits()}, std::int64_t{p.outputs.bits()},
        static_cast<std::int64_t>(p.pass), static_cast<std::int64_t>(key.statistics_type),
        static_cast<std::int64_t>(key.backend), std::int64_t{key.num_threads},
        std::int64_t{key.fork_generation}}) {
    add(static_cast<std::size_t>(part));
  }
  return h;
}

}  // namespace onedsl
