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

// oneDNN's Graph API, as it is: ops, their ports, compiled partitions. Nothing here mends what
// oneDNN lacks (backend.hpp does).
namespace onedsl::onednn {

// An operation as oneDNN's documents describe its ops. dims are src's, in the order of data_format.
struct Op {
  Operation operation = Operation::training_backward;
  float epsilon = 0;
  float momentum = 0.5F;
  float clip = 0;           // infinity for none
  std::string data_format;  // "NXC" or "NCX"
  std::vector<std::int64_t> dims;
  DataType data = DataType::f32;
  DataType statistics = DataType::f32;
  InputSet inputs;
  OutputSet outputs;
};

// Something compiled for the CPU engine and for the thread count that OpenMP had then. Not for two
// threads at once. Ports that it was built without are not looked at.
class Executable {
 public:
  virtual ~Executable() = default;
  virtual void execute(const Ports& ports) = 0;
  virtual std::size_t bytes() const noexcept { return 0; }       // of tensors that it holds
  virtual std::optional<GraphView> graph() const { return {}; }  // nothing if it is none
};

// A graph that holds the operation's ops, finalized, partitioned and compiled. Where oneDNN makes
// several partitions of it, what one hands on to another is held here.
class CompiledGraph final : public Executable {
 public:
  explicit CompiledGraph(const Op& op);
  void execute(const Ports& ports) override;
  std::size_t bytes() const noexcept override;
  std::optional<GraphView> graph() const override;

 private:
  struct Step {
    dnnl::graph::compiled_partition partition;
    GraphView::Partition view;  // without tensors
    std::vector<std::size_t> input_ids, output_ids;
    std::vector<dnnl::graph::tensor> inputs, outputs;
  };

  Step compile_step(const dnnl::graph::partition& partition);
  void* memory_of(std::size_t id, const Ports& ports);

  Op op_;
  const char* name_;
  dnnl::stream stream_;
  std::vector<Step> steps_;  // in an order in which every one finds its inputs computed
  std::map<std::size_t, std::vector<std::byte>> between_;  // by the logical tensor's id
};

}  // namespace onedsl::onednn
