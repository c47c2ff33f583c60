#include "key.hpp"

#include <cstdint>
#include <cstring>
#include <tuple>

#include "../core/threads.hpp"

namespace onedsl {
namespace {

// An order of doubles would take NaN for equal to every number.
std::uint64_t bits_of(const double value) noexcept {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

auto parts_of(const PlanKey& key) noexcept {
  const Problem& p = key.problem;
  return std::tuple(p.geometry.outer, p.geometry.channels, p.geometry.inner, p.data, p.operation,
                    p.statistics, p.variance_kind, bits_of(p.attributes.epsilon),
                    bits_of(p.attributes.momentum), bits_of(p.attributes.clip),
                    p.optional_tensors.bits(), p.outputs.bits(), p.pass, key.statistics_type,
                    key.onednn, key.num_threads, key.fork_generation);
}

}  // namespace

PlanKey make_key(const OpConfig& config, const Geometry& geometry, const DataType data,
                 const DataType statistics_type, const InputSet given, const OutputSet outputs,
                 const bool onednn, const Pass pass) {
  InputSet optional_tensors;
  signature_of(config.operation).optional.for_each([&](const Input port) {
    if (is_tensor(port) && given.has(port)) optional_tensors.add(port);
  });
  return {{config, geometry, data, optional_tensors, outputs, pass},
          statistics_type,
          onednn,
          max_threads(),
          fork_generation()};
}

bool operator<(const PlanKey& a, const PlanKey& b) noexcept { return parts_of(a) < parts_of(b); }

}  // namespace onedsl
