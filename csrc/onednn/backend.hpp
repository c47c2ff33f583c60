#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "../core/problem.hpp"
#include "graph.hpp"

namespace onedsl::onednn {

// oneDNN's op, made right: shapes are re-seen as those that its kernels take, the three outputs
// are always asked for, and an absent gamma is ones.
class Backend {
 public:
  // Throws UnsupportedError, with the instruction set that would be needed, where oneDNN cannot.
  Backend(const Problem& problem, int num_threads);
  ~Backend();
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  // Safe to call from many threads: calls wait for each other, because oneDNN does not promise
  // that one compiled partition may run twice at once (its issue 4381 reports a crash).
  void run(const Ports& ports);

  std::optional<GraphView> graph() const;  // nothing where oneDNN runs a primitive, and no graph

  std::size_t bytes() const noexcept;  // about what it holds, oneDNN's part included

 private:
  std::unique_ptr<Executable> op_;  // first: it refuses what the vectors should not be made for
  int num_threads_;
  std::vector<float> ones_;      // for an absent gamma
  std::vector<float> zeros_;     // for an absent beta
  std::vector<float> unwanted_;  // sums that nobody asked for
  std::mutex mutex_;
};

}  // namespace onedsl::onednn
