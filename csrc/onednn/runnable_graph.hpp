#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../core/thread_limit.hpp"
#include "../core/threads.hpp"
#include "../core/types.hpp"

namespace onedsl {

// An array that a call of a compiled graph passes.
struct GraphArray {
  std::size_t id;     // of the logical tensor
  std::size_t index;  // in the call
  DataType type;
  std::vector<std::int64_t> dims, strides;  // in elements
};

// A compiled graph, for callers that need no oneDNN: the implementation is in another extension.
class RunnableGraph {
 public:
  RunnableGraph() = default;
  virtual ~RunnableGraph() = default;
  RunnableGraph(const RunnableGraph&) = delete;
  RunnableGraph& operator=(const RunnableGraph&) = delete;

  virtual const std::vector<GraphArray>& inputs() const noexcept = 0;
  virtual const std::vector<GraphArray>& outputs() const noexcept = 0;
  virtual int max_threads() const noexcept = 0;
  // Runs the graph on the memory of the inputs and outputs, with this number of threads.
  virtual void execute(const std::vector<const void*>& inputs, const std::vector<void*>& outputs,
                       int num_threads) = 0;
};

// Runs a graph on as many of its threads as are available, and returns their number.
inline int run(RunnableGraph& graph, const std::vector<const void*>& inputs,
               const std::vector<void*>& outputs) {
  const ThreadLimit most(graph.max_threads());
  const int available = max_threads();
  graph.execute(inputs, outputs, available);
  return available;
}

}  // namespace onedsl
