#include "compute.hpp"

#include <atomic>
#include <cmath>
#include <memory>

#include "../core/logging_enabled.hpp"
#include "../plan/cache.hpp"

namespace onedsl::torch {
namespace {

LoggedRun logged_run = nullptr;

}  // namespace

std::optional<PlanKey> plan_key(const View& src, const OpConfig& config, const InputSet given,
                                const OutputSet outputs, const Pass pass) {
  const double epsilon = config.attributes.epsilon;
  if (src.rank < 2 || src.rank > max_rank || !is_contiguous_or_channels_last(src) ||
      !std::isfinite(epsilon) || epsilon <= 0) {
    return std::nullopt;
  }
  const auto item_size = static_cast<std::ptrdiff_t>(size_of(src.type));
  const std::optional<Geometry> geometry =
      dense_geometry(src.rank, src.sizes, src.strides, 1, item_size, KeptAxes{1} << 1);
  if (!geometry || geometry->elements() <= geometry->statistics()) return std::nullopt;
  return make_key(config, *geometry, src.type, DataType::f32, given, outputs,
                  BackendChoice::automatic, pass);
}

void set_logged_run(const LoggedRun run) { logged_run = run; }

void execute(const PlanKey& key, const Ports& ports) {
  const std::shared_ptr<const Plan> plan = find_plan(key);
  if (logging_enabled.load(std::memory_order_relaxed)) return logged_run(*plan, ports);
  plan->execute(ports);
}

Results<3> compute_forward(const PlanKey& key, const View& src, const Affine& affine,
                           const void* const residual, OwnedTensor dst, const Sums& sums) {
  const std::int64_t channels = src.sizes[1];
  Results<3> results = {std::move(dst), empty_vector(channels), empty_vector(channels)};
  const auto length = static_cast<std::size_t>(channels);
  // Running statistics of oneDNN's formula, which PyTorch does not use: zeros, and the results.
  std::vector<float> unused(3 * length);
  Ports ports;
  ports.in[Input::src] = src.data;
  ports.in[Input::mean] = ports.in[Input::variance] = unused.data();
  ports.in[Input::gamma] = affine.gamma();
  ports.in[Input::beta] = affine.beta();
  ports.in[Input::residual] = residual;
  ports.sums = sums;
  ports.out[Output::dst] = memory_of<void>(*results[0]);
  ports.out[Output::running_mean] = unused.data() + length;
  ports.out[Output::running_variance] = unused.data() + 2 * length;
  ports.out[Output::batch_mean] = memory_of(*results[1]);
  ports.out[Output::batch_variance] = memory_of(*results[2]);
  execute(key, ports);
  return results;
}

// The library is never deleted: PyTorch's dispatcher cannot remove a kernel safely while other
// threads call it.
void add_kernels(const char* const ops,
                 const std::initializer_list<std::pair<const char*, Kernel*>> kernels) {
  Library* library = nullptr;
  check(api.make_library(ops, "CPU", "onedsl/csrc/torch/kernels.cpp", 0, &library));
  for (const auto& [op, kernel] : kernels) {
    check(api.add_kernel(library, op, kernel, oldest_version));
  }
}

}  // namespace onedsl::torch
