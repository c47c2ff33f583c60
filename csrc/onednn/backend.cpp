#include "backend.hpp"

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "../core/errors.hpp"
#include "../core/no_destructor.hpp"
#include "../core/threads.hpp"
#include "engine.hpp"
#include "frozen.hpp"
#include "fork_guard.hpp"

namespace onedsl::onednn {
namespace {

// Any NXC tensor is a rank-4 one of the same bytes. oneDNN blocks for the cache only where its
// first axis has work for every thread, so the rows are cut into that many images where they can
// be: 3 times faster than one image on tensors near the size of the cache.
std::int64_t images(const std::int64_t rows, const int num_threads) {
  for (std::int64_t n = num_threads; n <= std::int64_t{8} * num_threads; n += num_threads) {
    if (rows % n == 0) return n;
  }
  return 1;
}

// How oneDNN is shown the caller's memory.
std::unique_ptr<Executable> re_see(const Problem& problem, const int num_threads) {
  const Geometry& g = problem.geometry;
  const auto epsilon = static_cast<float>(problem.attributes.epsilon);
  const bool channels_last = g.inner == 1;
  const std::int64_t n = channels_last ? images(g.outer, num_threads) : g.outer;
  const std::int64_t spatial = channels_last ? g.outer / n : g.inner;
  if (problem.statistics == Statistics::frozen) {
    return std::make_unique<FrozenPrimitive>(dnnl::memory::dims{n, g.channels, spatial, 1},
                                             channels_last, problem.data, epsilon,
                                             problem.outputs.has(Output::diff_gamma));
  }
  const Signature& signature = signature_of(problem.operation);
  Op op;
  op.operation = problem.operation;
  op.epsilon = epsilon;
  op.momentum = static_cast<float>(problem.attributes.momentum);
  op.data = problem.data;
  op.clip = static_cast<float>(problem.attributes.clip);
  // The op's document has the gradient through the statistics for one output as well as for three,
  // but oneDNN computes another one (frozen statistics, no gamma) when diff_src alone is asked for,
  // and fails without gamma. So it is given all statistics, and asked for all.
  signature.inputs.for_each([&](const Input port) {
    const bool optional_tensor = is_tensor(port) && signature.optional.has(port);
    if (!optional_tensor || problem.optional_tensors.has(port)) op.inputs.add(port);
  });
  signature.outputs.for_each([&](const Output port) {
    if (!is_tensor(port) || problem.outputs.has(port)) op.outputs.add(port);
  });
  op.data_format = channels_last ? "NXC" : "NCX";
  op.dims = channels_last ? std::vector<std::int64_t>{n, 1, spatial, g.channels}
                          : std::vector<std::int64_t>{n, g.channels, spatial, 1};
  return std::make_unique<CompiledGraph>(op);
}

std::string needed_isa(const DataType data) {
  switch (data) {
    case DataType::f32:
      return "";
    case DataType::bf16:
      return ": bf16 needs AVX512 (avx512_core)";
    case DataType::f16:
      return ": f16 needs AVX512_FP16 (avx512_core_fp16)";
  }
  return "";
}

// oneDNN leaks some 6 KiB whenever it refuses. What it cannot run on this CPU it cannot run at any
// size, so it is asked once a type, with the smallest problem.
void refuse_unsupported(const Problem& problem) {
  using Kind = std::tuple<Operation, Statistics, DataType>;
  static NoDestructor<std::mutex> mutex;
  static NoDestructor<std::map<Kind, std::optional<UnsupportedError>>> refusals;
  const std::lock_guard<std::mutex> lock(*mutex);
  const auto [place, is_new] =
      refusals->try_emplace({problem.operation, problem.statistics, problem.data});
  if (is_new) {
    Problem smallest = problem;
    smallest.geometry = Geometry{1, 16, 1};
    try {
      re_see(smallest, 1);
    } catch (const UnsupportedError& error) {
      place->second = error;
    }
  }
  if (place->second) throw UnsupportedError(*place->second);
}

std::unique_ptr<Executable> compile(const Problem& problem, const int num_threads) {
  const Geometry& g = problem.geometry;
  if (problem.variance_kind != VarianceKind::variance) {
    throw UnsupportedError(
        "oneDNN takes a variance, and not an inverse deviation; use backend=\"native\" or \"auto\"",
        "unimplemented");
  }
  if (problem.operation == Operation::relu_training_backward &&
      !problem.optional_tensors.has(Input::dst)) {
    throw UnsupportedError(
        "oneDNN's ReLUBackward needs dst; give it, or use backend=\"native\" or \"auto\"",
        "unimplemented");
  }
  if (g.elements() > std::numeric_limits<std::int32_t>::max()) {
    throw UnsupportedError(
        "onedsl does not hand tensors of 2^31 elements or more to oneDNN; use backend=\"native\" "
        "or \"auto\"",
        "unimplemented");
  }
  if (g.num_loops > 0) {
    throw UnsupportedError(
        "oneDNN's statistics are those of axes that are neighbours in memory; use "
        "backend=\"native\" or \"auto\" for others",
        "unimplemented");
  }
  const ForkGuard inside;
  const ThreadLimit limit(num_threads);
  try {
    refuse_unsupported(problem);
    return re_see(problem, num_threads);
  } catch (const UnsupportedError& error) {
    throw UnsupportedError(std::string(error.what()) + " (CPU instruction set: " + cpu_isa() +
                               needed_isa(problem.data) +
                               "). Use backend=\"native\" or \"auto\", which run everywhere.",
                           error.status());
  }
}

}  // namespace

Backend::Backend(const Problem& problem, const int num_threads)
    : op_(compile(problem, num_threads)), num_threads_(num_threads) {
  if (problem.geometry.elements() == 0) return;  // is never run
  const auto channels = static_cast<std::size_t>(problem.geometry.channels);
  ones_.assign(channels, 1.0F);
  zeros_.assign(channels, 0.0F);
  if (problem.outputs == OutputSet(Output::diff_src)) unwanted_.resize(2 * channels);
}

Backend::~Backend() {
  const ForkGuard inside;
  op_.reset();
}

void Backend::run(const Ports& ports) {
  const ForkGuard inside;
  const std::lock_guard<std::mutex> lock(mutex_);
  const ThreadLimit limit(num_threads_);
  Ports all = ports;
  if (all.in[Input::gamma] == nullptr) all.in[Input::gamma] = ones_.data();
  if (all.in[Input::beta] == nullptr) all.in[Input::beta] = zeros_.data();
  if (!unwanted_.empty()) {
    all.out[Output::diff_gamma] = unwanted_.data();
    all.out[Output::diff_beta] = unwanted_.data() + ones_.size();
  }
  op_->execute(all);
}

std::optional<GraphView> Backend::graph() const {
  const ForkGuard inside;
  return op_->graph();
}

std::size_t Backend::bytes() const noexcept {
  constexpr std::size_t onednn_own = std::size_t{90} << 10;  // measured, versions 3.2 and 3.11
  return onednn_own + op_->bytes() +
         (ones_.size() + zeros_.size() + unwanted_.size()) * sizeof(float);
}

}  // namespace onedsl::onednn
