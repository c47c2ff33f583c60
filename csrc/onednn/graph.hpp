#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <oneapi/dnnl/dnnl_graph.hpp>
#include <optional>
#include <string>
#include <vector>

#include "../core/types.hpp"
#include "fork_guard.hpp"
#include "graph_view.hpp"

// Graphs of oneDNN's Graph API. Nothing here works around limits of oneDNN: see onedsl/graph.
namespace onedsl::onednn {

// Returns the partitions into which oneDNN divides a graph, in execution order.
std::vector<PartitionView> partitions_of(const Nodes& nodes);

// A graph that oneDNN compiled for a number of OpenMP threads; a forked child compiles it again,
// for one thread. Throws UnsupportedError if oneDNN does not support a partition.
class CompiledGraph {
 public:
  using Constants = std::map<std::size_t, float>;  // by id of the logical tensor

  // `inputs` and `outputs` are the tensors that a call passes, by id. Their types may differ from
  // those of the graph, one of the two being f32: then runs convert them. All other tensors of the
  // graph are in own memory, filled with a number if `constants` has one.
  CompiledGraph(Nodes nodes, std::vector<TensorView> inputs, std::vector<TensorView> outputs,
                Constants constants, int num_threads);
  ~CompiledGraph();
  CompiledGraph(const CompiledGraph&) = delete;
  CompiledGraph& operator=(const CompiledGraph&) = delete;

  // Runs the graph on the memory of the inputs and outputs.
  //
  // Thread-safe: concurrent calls run one after the other, because oneDNN does not guarantee that a
  // compiled partition may run twice at the same time (its issue 4381 reports a crash).
  void execute(const std::vector<const void*>& inputs, const std::vector<void*>& outputs);

  const std::vector<TensorView>& inputs() const noexcept { return inputs_; }
  const std::vector<TensorView>& outputs() const noexcept { return outputs_; }
  std::vector<PartitionView> partitions();  // with the tensors as compiled

 private:
  struct Step {
    dnnl::graph::compiled_partition partition;
    PartitionView view;
    std::vector<dnnl::graph::tensor> inputs, outputs;
  };
  struct Port {
    std::size_t index;  // of the array that a call passes
    DataType type;
  };
  // The memory of a logical tensor.
  struct Slot {
    DataType type = DataType::f32;
    std::size_t bytes = 0;
    std::optional<Port> input, output;
    std::vector<float> constant;
    std::size_t offset = 0;  // in the scratch memory of a run
    void* memory = nullptr;  // in this run

    std::size_t count() const noexcept { return bytes / size_of(type); }
    bool needs_scratch() const noexcept {
      const std::optional<Port>& port = input ? input : output;
      return constant.empty() && !(port && port->type == type);
    }
  };

  void compile(int num_threads);
  std::vector<dnnl::graph::tensor> add_slots(
      const std::vector<dnnl::graph::logical_tensor>& tensors);
  void bind_slots();
  void set_memory(const std::vector<TensorView>& views, std::vector<dnnl::graph::tensor>& tensors);

  // Held by the constructor and the destructor. The first member, so that it is released last.
  std::optional<ForkGuard> guard_;
  Nodes nodes_;
  std::vector<TensorView> inputs_, outputs_;
  Constants constants_;
  std::string name_;
  std::mutex mutex_;  // of all members below
  int num_threads_ = 0;
  int generation_ = 0;
  dnnl::stream stream_;
  std::vector<Step> steps_;            // in execution order
  std::map<std::size_t, Slot> slots_;  // by id of the logical tensor
  std::size_t scratch_bytes_ = 0;
};

}  // namespace onedsl::onednn
