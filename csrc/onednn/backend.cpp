#include "backend.hpp"

#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "../core/errors.hpp"
#include "../core/no_destructor.hpp"
#include "engine.hpp"
#include "fork_guard.hpp"

namespace onedsl::onednn {
namespace {

// Return the number of images into which an NXC tensor of `rows` rows is split. Any divisor of
// `rows` is possible, but oneDNN blocks for the cache only if there are enough images for all
// threads: on tensors near the size of the cache this is 3 times as fast as one image.
std::int64_t num_images(const std::int64_t rows, const int num_threads) {
  for (std::int64_t n = num_threads; n <= std::int64_t{8} * num_threads; n += num_threads) {
    if (rows % n == 0) return n;
  }
  return 1;
}

// Return the graph of the problem, with its tensors reshaped to rank 4. If diff_src is the only
// output, oneDNN computes the gradient for frozen statistics, contrary to its documentation, and
// fails without gamma. So the graph has all statistics as ports.
Nodes reshaped_graph(const Problem& problem, const int num_threads) {
  const auto [outer, channels, inner] = problem.geometry;
  if (inner != 1) return nodes_of(problem, {outer, channels, inner, 1}, "NCX");
  const std::int64_t n = num_images(outer, num_threads);
  return nodes_of(problem, {n, 1, outer / n, channels}, "NXC");
}

// Returns the instruction set that oneDNN's kernels of this type need if this CPU lacks it, or "".
std::string missing_isa(const DataType data) {
  const auto lacks = [](const dnnl_cpu_isa_t isa) {
    return (dnnl_get_effective_cpu_isa() & isa) !=
           isa;  // newer ones contain the bits of older ones
  };
  if (data == DataType::bf16 && lacks(dnnl_cpu_isa_avx512_core)) return "avx512_core";
  if (data == DataType::f16 && lacks(dnnl_cpu_isa_avx512_core_fp16)) return "avx512_core_fp16";
  return "";
}

// Returns the message for a problem that oneDNN rejected.
std::string unsupported_message(const DataType data, const std::string& said) {
  const std::string isa = missing_isa(data);
  const std::string reason =
      isa.empty() ? "does not support this call on this CPU, which has " + cpu_isa()
                  : "has no " + std::string(name_of(data)) + " kernel for this CPU: it needs " +
                        isa + ", this CPU has " + cpu_isa();
  return name() + " " + reason +
         ". Use backend=\"native\" or \"auto\", which run on any x86-64 CPU. oneDNN said: " + said;
}

// Throw UnsupportedError if oneDNN does not support the operation with these types on this CPU, at
// any size. oneDNN leaks about 6 KiB whenever it rejects an op, so this compiles the smallest
// problem once for each combination and stores the result, unless oneDNN fails for another reason.
void check_support(const Problem& problem) {
  using Kind = std::pair<Operation, DataType>;
  static NoDestructor<std::mutex> mutex;
  static NoDestructor<std::map<Kind, std::optional<UnsupportedError>>> results;
  const std::lock_guard<std::mutex> lock(*mutex);
  const Kind kind{problem.operation, problem.data};
  if (results->count(kind) == 0) {
    Problem smallest = problem;
    smallest.geometry = Geometry{1, 16, 1};
    std::optional<UnsupportedError> result;
    try {
      const CompiledGraph compiled(reshaped_graph(smallest, 1), 1);
    } catch (const UnsupportedError& error) {
      result = error;
    }
    results->emplace(kind, std::move(result));
  }
  if (const auto& error = results->at(kind)) throw UnsupportedError(*error);
}

[[noreturn]] void raise_unsupported(const std::string& message) {
  throw UnsupportedError(message, "unimplemented");
}

// Throw UnsupportedError for problems that must not reach oneDNN.
void check_limits(const Problem& problem) {
  if (problem.statistics == Statistics::frozen) {
    raise_unsupported(
        "oneDNN's Graph API has no op for frozen statistics; use backend=\"native\" or \"auto\"");
  }
  if (problem.operation == Operation::relu_training_backward &&
      !problem.optional_tensors.has(Input::dst)) {
    raise_unsupported(
        "oneDNN's ReLUBackward needs dst; pass it, or use backend=\"native\" or \"auto\"");
  }
  if (problem.geometry.elements() > std::numeric_limits<std::int32_t>::max()) {
    raise_unsupported(
        "onedsl does not pass tensors of 2^31 elements or more to oneDNN; use backend=\"native\" "
        "or \"auto\"");
  }
}

CompiledGraph compile(const Problem& problem, const int num_threads) {
  check_limits(problem);
  const ForkGuard guard;
  try {
    check_support(problem);
    return CompiledGraph(reshaped_graph(problem, num_threads), num_threads);
  } catch (const UnsupportedError& error) {
    throw UnsupportedError(unsupported_message(problem.data, error.what()), error.status());
  }
}

}  // namespace

Backend::Backend(const Problem& problem, const int num_threads)
    : compiled_(compile(problem, num_threads)) {
  if (problem.geometry.elements() == 0) return;  // never run
  const auto channels = static_cast<std::size_t>(problem.geometry.channels);
  ones_.assign(channels, 1.0F);
  zeros_.assign(channels, 0.0F);
  if (problem.outputs == OutputSet(Output::diff_src)) unused_sums_.resize(2 * channels);
}

void Backend::run(const Ports& ports) {
  Ports all = ports;
  if (all.in[Input::gamma] == nullptr) all.in[Input::gamma] = ones_.data();
  if (all.in[Input::beta] == nullptr) all.in[Input::beta] = zeros_.data();
  if (!unused_sums_.empty()) {
    all.out[Output::diff_gamma] = unused_sums_.data();
    all.out[Output::diff_beta] = unused_sums_.data() + ones_.size();
  }
  compiled_.execute([&](const std::size_t id) {
    if (id >= id_of(Output{})) return all.out[static_cast<Output>(id - id_of(Output{}))];
    // oneDNN has one type for inputs and outputs; it does not write to inputs.
    return const_cast<void*>(all.in[static_cast<Input>(id)]);
  });
}

std::size_t Backend::bytes() const noexcept {
  constexpr std::size_t onednn_bytes = std::size_t{90} << 10;  // measured, versions 3.2 and 3.11
  return onednn_bytes + compiled_.bytes() +
         (ones_.size() + zeros_.size() + unused_sums_.size()) * sizeof(float);
}

}  // namespace onedsl::onednn
