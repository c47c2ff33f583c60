#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <oneapi/dnnl/dnnl_graph.hpp>
#include <optional>
#include <string>
#include <vector>

#include "../core/operation.hpp"
#include "../core/ports.hpp"
#include "../core/types.hpp"
#include "graph_view.hpp"

// Operations as graphs of oneDNN's Graph API. Works around no limits of oneDNN: see backend.hpp.
namespace onedsl::onednn {

// Arguments of a graph. dims are those of src, in the order of data_format.
struct Op {
  Operation operation = Operation::training_backward;
  float epsilon = 0;
  float momentum = 0.5F;
  float clip = 0;           // infinity: no upper bound
  std::string data_format;  // "NXC" or "NCX"
  std::vector<std::int64_t> dims;
  DataType data = DataType::f32;
  DataType statistics = DataType::f32;
  InputSet inputs;
  OutputSet outputs;
};

// Compiled code of oneDNN, for the number of OpenMP threads at compilation. execute() is not
// thread-safe and ignores ports that are not part of the compiled problem.
class Executable {
 public:
  virtual ~Executable() = default;
  virtual void execute(const Ports& ports) = 0;
  virtual std::size_t bytes() const noexcept { return 0; }       // of intermediate tensors
  virtual std::optional<GraphView> graph() const { return {}; }  // nullopt for a primitive
};

// A graph of the ops of one operation: finalized, partitioned and compiled. If oneDNN makes several
// partitions, this holds the tensors between them.
class CompiledGraph final : public Executable {
 public:
  explicit CompiledGraph(const Op& op);
  void execute(const Ports& ports) override;
  std::size_t bytes() const noexcept override;
  std::optional<GraphView> graph() const override;

 private:
  struct Step {
    dnnl::graph::compiled_partition partition;
    GraphView::Partition view;  // its tensors are queried when needed
    std::vector<std::size_t> input_ids, output_ids;
    std::vector<dnnl::graph::tensor> inputs, outputs;
  };

  Step compile_step(const dnnl::graph::partition& partition);
  void* memory_of(std::size_t id, const Ports& ports);

  Op op_;
  const char* name_;
  dnnl::stream stream_;
  std::vector<Step> steps_;                                      // in execution order
  std::map<std::size_t, std::vector<std::byte>> intermediates_;  // by id of the logical tensor
};

}  // namespace onedsl::onednn
