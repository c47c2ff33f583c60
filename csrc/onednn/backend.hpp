#pragma once

#include <cstddef>
#include <vector>

#include "../core/problem.hpp"
#include "graph.hpp"

namespace onedsl::onednn {

// Runs a problem on oneDNN and works around its limits: reshapes to rank 4, always requests the
// statistics among the outputs, and passes ones and zeros for absent gamma and beta.
class Backend {
 public:
  // Throws UnsupportedError, with the required instruction set, if oneDNN cannot run the problem.
  Backend(const Problem& problem, int num_threads);

  void run(const Ports& ports);  // thread-safe

  const Nodes& graph() const noexcept { return compiled_.nodes(); }
  std::size_t bytes() const noexcept;  // of memory held, oneDNN's included, approximately

 private:
  CompiledGraph compiled_;    // first: the vectors are not allocated if the problem is unsupported
  std::vector<float> ones_;   // for an absent gamma
  std::vector<float> zeros_;  // for an absent beta
  std::vector<float> unused_sums_;  // oneDNN computes them, the caller does not request them
};

}  // namespace onedsl::onednn
