#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <oneapi/dnnl/dnnl_graph.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "../core/operation.hpp"
#include "../core/types.hpp"
#include "runnable_graph.hpp"

// Graphs of oneDNN's Graph API. Nothing here works around limits of oneDNN: see onedsl/graph.
namespace onedsl::onednn {

// Values by oneDNN's names.
template <class Value, std::size_t n>
using ByName = std::array<std::pair<const char*, Value>, n>;

// A kind of op: the id of the operation that has its ports, or their names, and the names of its
// attributes. Names are separated by spaces.
struct OpKind {
  dnnl::graph::op::kind value;
  const char* operation;
  const char* inputs;
  const char* outputs;
  const char* attributes;
};

// The kinds of ops that onedsl passes to oneDNN.
constexpr ByName<OpKind, 12> op_kinds = [] {
  using Kind = dnnl::graph::op::kind;
  const Signature& gradient = signature_of(Operation::training_backward);
  const Signature& forward = signature_of(Operation::forward_training);
  return ByName<OpKind, 12>{{
      {gradient.name,
       {Kind::BatchNormTrainingBackward, gradient.id, "", "", "epsilon data_format"}},
      {forward.name,
       {Kind::BatchNormForwardTraining, forward.id, "", "", "epsilon data_format momentum"}},
      {"Add", {Kind::Add, "", "src_0 src_1", "dst", ""}},
      {"Clamp", {Kind::Clamp, "", "src", "dst", "min max"}},
      {"ClampBackward", {Kind::ClampBackward, "", "dst diff_dst", "diff_src", "min max use_dst"}},
      {"GELU", {Kind::GELU, "", "src", "dst", ""}},
      {"GELUBackward", {Kind::GELUBackward, "", "src diff_dst", "diff_src", ""}},
      {"HardSwish", {Kind::HardSwish, "", "src", "dst", ""}},
      {"HardSwishBackward", {Kind::HardSwishBackward, "", "src diff_dst", "diff_src", ""}},
      {"LeakyReLU", {Kind::LeakyReLU, "", "src", "dst", "alpha"}},
      {"ReLU", {Kind::ReLU, "", "src", "dst", ""}},
      {"ReLUBackward", {Kind::ReLUBackward, "", "dst diff_dst", "diff_src", "use_dst"}},
  }};
}();

// Graphs as data, which Python passes as tuples. Strings are oneDNN's names.

using Sizes = std::vector<std::int64_t>;
// A logical tensor: id, dtype, dims, strides in elements, layout, property. There are as many
// strides as dims, none in results whose layout is not strided.
using TensorTuple = std::tuple<std::size_t, std::string, Sizes, Sizes, std::string, std::string>;
using TensorTuples = std::vector<TensorTuple>;
using Attributes = std::vector<std::pair<std::string, std::variant<bool, float, std::string>>>;
// An op: id, name, kind, attributes, inputs, outputs.
using Node =
    std::tuple<std::size_t, std::string, std::string, Attributes, TensorTuples, TensorTuples>;
using Nodes = std::vector<Node>;
// A partition: id, ids of the ops, whether it is supported, inputs, outputs.
using PartitionTuple =
    std::tuple<std::size_t, std::vector<std::size_t>, bool, TensorTuples, TensorTuples>;

// Returns the partitions into which oneDNN divides a graph, in execution order.
std::vector<PartitionTuple> partitions_of(const Nodes& nodes);

// A graph that oneDNN compiled for a number of OpenMP threads, without all of which its results
// would be wrong. A run compiles it again if another number is available, as in a forked child, and
// keeps what it compiled for the latest numbers. Throws UnsupportedError if oneDNN does not support
// a partition.
class CompiledGraph final : public RunnableGraph {
 public:
  using Constants = std::map<std::size_t, float>;  // by id of the logical tensor

  // `inputs` and `outputs` are the tensors that a call passes, by id. Their types may differ from
  // those of the graph, one of the two being f32: then runs convert them. All other tensors of the
  // graph are in own memory, filled with a number if `constants` has one.
  CompiledGraph(Nodes nodes, const TensorTuples& inputs, const TensorTuples& outputs,
                Constants constants, int num_threads);
  ~CompiledGraph() override;

  // Thread-safe: concurrent calls run one after the other, because oneDNN does not guarantee that a
  // compiled partition may run twice at the same time (its issue 4381 reports a crash of MatMul).
  // Two graphs may still share one: oneDNN's cache, since 3.5, has one for equal ops and tensors.
  // No state that two runs of batch norm share is in its source.
  void execute(const std::vector<const void*>& inputs, const std::vector<void*>& outputs,
               int num_threads) override;

  int num_threads() const noexcept { return num_threads_; }  // of the latest run
  int max_threads() const noexcept override { return max_threads_; }
  const std::vector<GraphArray>& inputs() const noexcept override { return inputs_; }
  const std::vector<GraphArray>& outputs() const noexcept override { return outputs_; }
  std::vector<PartitionTuple> partitions();  // with the tensors as compiled

 private:
  // The memory of a logical tensor.
  struct Slot {
    DataType type = DataType::f32;
    std::size_t bytes = 0;
    const GraphArray* input = nullptr;
    const GraphArray* output = nullptr;
    std::vector<std::byte> constant;
    std::size_t offset = 0;  // in the scratch memory of a run
    void* memory = nullptr;  // in this run

    std::size_t count() const noexcept { return bytes / size_of(type); }
    bool needs_scratch() const noexcept {
      const GraphArray* const port = input != nullptr ? input : output;
      return constant.empty() && (port == nullptr || port->type != type);
    }
  };
  // The inputs or the outputs of a partition.
  struct Side {
    std::vector<Slot*> slots;
    std::vector<dnnl::graph::tensor> tensors;
  };
  struct Step {
    dnnl::graph::partition partition;
    dnnl::graph::compiled_partition compiled;
    Side inputs, outputs;
  };

  // What oneDNN compiled for a number of threads.
  struct Program {
    int num_threads = 0;
    dnnl::stream stream;
    std::vector<Step> steps;            // in execution order
    std::map<std::size_t, Slot> slots;  // by id of the logical tensor
    std::size_t scratch_bytes = 0;

    Side side_of(const std::vector<dnnl::graph::logical_tensor>& tensors);
  };

  static constexpr std::size_t most_programs = 4;

  Program compile(int num_threads) const;
  void assign_slots(Program& program) const;
  // Moves the program for a number of threads to the front, or compiles it: the former ones remain
  // if that fails.
  void select_program(int num_threads);

  const Nodes nodes_;
  const std::vector<GraphArray> inputs_, outputs_;
  const Constants constants_;
  const std::string name_;
  const int max_threads_;
  std::mutex mutex_;             // of the members below
  std::list<Program> programs_;  // that of the latest run first
  std::atomic<int> num_threads_;
};

}  // namespace onedsl::onednn
