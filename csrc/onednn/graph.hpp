#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <oneapi/dnnl/dnnl_graph.hpp>
#include <optional>
#include <string>
#include <vector>

#include "../core/problem.hpp"
#include "fork_guard.hpp"
#include "graph_view.hpp"

// Graphs of oneDNN's Graph API. Nothing here works around limits of oneDNN: see backend.hpp.
namespace onedsl::onednn {

// Returns the graph of a problem with batch statistics, in C order, for tensors of these sizes in
// the order of data_format. All statistics of the operation are ports. The tensors' ids are those
// of id_of(), then first_intermediate and so on.
Nodes nodes_of(const Problem& problem, const std::vector<std::int64_t>& dims,
               const std::string& data_format);
constexpr std::size_t id_of(const Input port) { return static_cast<std::size_t>(port); }
constexpr std::size_t id_of(const Output port) {
  return num_ports(Input{}) + static_cast<std::size_t>(port);
}
constexpr std::size_t first_intermediate = num_ports(Input{}) + num_ports(Output{});

// Returns the partitions into which oneDNN divides a graph, in execution order.
std::vector<PartitionView> partitions_of(const Nodes& nodes);

// A graph that oneDNN compiled for a number of OpenMP threads; a forked child compiles it again,
// for one thread. If oneDNN makes several partitions, this holds the tensors between them. Throws
// UnsupportedError if oneDNN does not support a partition.
class CompiledGraph {
 public:
  CompiledGraph(Nodes nodes, int num_threads);
  ~CompiledGraph();
  CompiledGraph(const CompiledGraph&) = delete;
  CompiledGraph& operator=(const CompiledGraph&) = delete;

  // Thread-safe: concurrent calls run one after the other, because oneDNN does not guarantee that a
  // compiled partition may run twice at the same time (its issue 4381 reports a crash).
  //
  // `memory` returns the memory of a tensor by its id, for all ids that are less than
  // first_intermediate, or for all ids of a graph of one op.
  void execute(const std::function<void*(std::size_t)>& memory);

  const Nodes& nodes() const noexcept { return nodes_; }
  int num_threads() const noexcept { return num_threads_; }
  std::vector<PartitionView> partitions() const;  // with the tensors as compiled
  std::size_t bytes() const noexcept;             // of the tensors between partitions

 private:
  struct Step {
    dnnl::graph::compiled_partition partition;
    PartitionView view;
    std::vector<dnnl::graph::tensor> inputs, outputs;
  };

  void compile(int num_threads);

  // Held by the constructor and the destructor. The first member, so that it is released last.
  std::optional<ForkGuard> guard_;
  Nodes nodes_;
  std::string name_;
  std::mutex mutex_;
  int num_threads_ = 0;
  int generation_ = 0;
  dnnl::stream stream_;
  std::vector<Step> steps_;                                      // in execution order
  std::map<std::size_t, std::vector<std::byte>> intermediates_;  // by id of the logical tensor
};

}  // namespace onedsl::onednn
