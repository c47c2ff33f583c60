#include "backend.hpp"

#include <cstdint>
#include <limits>

#include "../errors.hpp"
#include "../threads.hpp"

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
BatchNormTrainingBackward re_see(const Problem& problem, const int num_threads) {
  BatchNormTrainingBackward op;
  op.epsilon = static_cast<float>(problem.epsilon);
  op.data = problem.data;
  const Geometry& g = problem.geometry;
  if (g.inner == 1) {
    const std::int64_t n = images(g.outer, num_threads);
    op.data_format = "NXC";
    op.dims = {n, 1, g.outer / n, g.channels};
  } else {
    op.data_format = "NCX";
    op.dims = {g.outer, g.channels, g.inner, 1};
  }
  return op;
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

CompiledOp compile(const Problem& problem, const int num_threads) {
  if (problem.geometry.elements() > std::numeric_limits<std::int32_t>::max()) {
    throw UnsupportedError(
        "onedsl does not hand tensors of 2^31 elements or more to oneDNN; use backend=\"native\" "
        "or \"auto\"",
        "unimplemented");
  }
  const ThreadLimit limit(num_threads);
  try {
    return CompiledOp(re_see(problem, num_threads));
  } catch (const UnsupportedError& error) {
    throw UnsupportedError(std::string(error.what()) + " (CPU instruction set: " + cpu_isa() +
                               needed_isa(problem.data) +
                               "). Use backend=\"native\" or \"auto\", which run everywhere.",
                           error.status());
  }
}

}  // namespace

Backend::Backend(const Problem& problem, const int num_threads)
    : op_(compile(problem, num_threads)),
      num_threads_(num_threads),
      ones_(static_cast<std::size_t>(problem.geometry.channels), 1.0F),
      unwanted_(ones_.size() * 2) {}

void Backend::run(const Arguments& arguments) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const ThreadLimit limit(num_threads_);
  // The op's document has the gradient through the statistics for one output as well as for
  // three, but oneDNN computes another one (frozen statistics, no gamma) when diff_src alone is
  // asked for. So the sums are always asked for, and thrown away here when nobody wants them.
  const bool sums = arguments.diff_gamma != nullptr;
  float* const diff_gamma = sums ? arguments.diff_gamma : unwanted_.data();
  float* const diff_beta = sums ? arguments.diff_beta : unwanted_.data() + ones_.size();
  // Inputs too are void* for oneDNN; it does not write to them.
  const auto input = [](const void* const p) { return const_cast<void*>(p); };
  op_.execute({input(arguments.src), input(arguments.diff_dst), input(arguments.mean),
               input(arguments.variance),
               input(arguments.gamma != nullptr ? arguments.gamma : ones_.data()),
               arguments.diff_src, diff_gamma, diff_beta});
}

}  // namespace onedsl::onednn
