#include "key.hpp"

#include <functional>
#include <tuple>
#include <type_traits>

#include "../core/threads.hpp"

namespace onedsl {
namespace {

auto parts_of(const PlanKey& key) noexcept {
  const Problem& p = key.problem;
  return std::tuple(p.operation, p.attributes.epsilon, p.attributes.momentum, p.attributes.clip,
                    p.statistics, p.variance_kind, p.geometry.outer, p.geometry.channels,
                    p.geometry.inner, p.data, p.optional_tensors.bits(), p.outputs.bits(), p.pass,
                    key.statistics_type, key.backend, key.num_threads, key.fork_generation);
}

}  // namespace

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

bool operator==(const PlanKey& a, const PlanKey& b) noexcept { return parts_of(a) == parts_of(b); }

std::size_t PlanKeyHash::operator()(const PlanKey& key) const noexcept {
  std::size_t h = 0;
  const auto add = [&h](const auto part) {
    h = (h ^ std::hash<std::decay_t<decltype(part)>>{}(part)) * 0x9e3779b97f4a7c15U;
    h ^= h >> 32;
  };
  std::apply([&](const auto... parts) { (add(parts), ...); }, parts_of(key));
  return h;
}

}  // namespace onedsl
