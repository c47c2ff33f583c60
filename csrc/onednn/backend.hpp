#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "../core/problem.hpp"
#include "graph.hpp"

namespace onedsl::onednn {

// Runs a problem on oneDNN and works around its limits: reshapes to rank 4, always requests the
// statistics among the outputs, and passes ones for an absent gamma.
class Backend {
 public:
  // Throws UnsupportedError, with the required instruction set, if oneDNN cannot run the problem.
  Backend(const Problem& problem, int num_threads);

  // Thread-safe: concurrent calls run one after the other, because oneDNN does not guarantee that a
  // compiled partition may run twice at the same time (its issue 4381 reports a crash).
  void run(const Ports& ports);

  std::optional<GraphView> graph() const;  // nullopt if oneDNN runs a primitive
  std::size_t bytes() const noexcept;      // of memory held, oneDNN's included, approximately

 private:
  struct Delete {
    void operator()(Executable* executable) const noexcept;  // enters oneDNN, so it takes a guard
  };
  using Owned = std::unique_ptr<Executable, Delete>;

  static Owned compile(const Problem& problem, int num_threads);

  Owned executable_;  // first: the vectors are not allocated if the problem is unsupported
  int num_threads_;
  std::vector<float> ones_;         // for an absent gamma
  std::vector<float> zeros_;        // for an absent beta
  std::vector<float> unused_sums_;  // oneDNN computes them, the caller does not request them
  std::mutex mutex_;
};

}  // namespace onedsl::onednn
