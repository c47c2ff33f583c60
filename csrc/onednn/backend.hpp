#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "../core/problem.hpp"
#include "graph_view.hpp"

namespace onedsl::onednn {

// Code of oneDNN, for the number of OpenMP threads at compilation. execute() is not thread-safe and
// ignores ports that are not part of the compiled problem.
class Executable {
 public:
  virtual ~Executable() = default;
  virtual void execute(const Ports& ports) = 0;
  virtual std::size_t bytes() const noexcept { return 0; }  // of intermediate tensors
  virtual Nodes graph() const { return {}; }                // empty for a primitive
};

// Runs a problem on oneDNN and works around its limits: reshapes to rank 4, always requests the
// statistics among the outputs, and passes ones for an absent gamma.
class Backend {
 public:
  // Throws UnsupportedError, with the required instruction set, if oneDNN cannot run the problem.
  Backend(const Problem& problem, int num_threads);

  // Thread-safe: concurrent calls run one after the other, because oneDNN does not guarantee that a
  // compiled partition may run twice at the same time (its issue 4381 reports a crash).
  void run(const Ports& ports);

  Nodes graph() const;                 // empty if oneDNN runs a primitive
  std::size_t bytes() const noexcept;  // of memory held, oneDNN's included, approximately

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
