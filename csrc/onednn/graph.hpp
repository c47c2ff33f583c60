#pragma once

#include <cstdint>
#include <oneapi/dnnl/dnnl_graph.hpp>
#include <string>
#include <vector>

#include "../core/operation.hpp"
#include "../core/ports.hpp"
#include "../core/types.hpp"

// oneDNN's Graph API, as it is: one op, its ports, a compiled partition. Nothing here mends what
// oneDNN lacks (backend.hpp does).
namespace onedsl::onednn {

// One op, as oneDNN's document describes it. dims are src's, in the order of data_format.
struct Op {
  Operation operation = Operation::training_backward;
  float epsilon = 0;
  float momentum = 0.5F;
  std::string data_format;  // "NXC" or "NCX"
  std::vector<std::int64_t> dims;
  DataType data = DataType::f32;
  DataType statistics = DataType::f32;
  InputSet given;
  OutputSet wanted;
};

// Something compiled for the CPU engine and for the thread count that OpenMP had then. Not for two
// threads at once. Ports that it was built without are not looked at.
class Executable {
 public:
  virtual ~Executable() = default;
  virtual void execute(const Ports& ports) = 0;
};

// A graph that holds this single op, finalized, partitioned and compiled.
class CompiledOp final : public Executable {
 public:
  explicit CompiledOp(const Op& op);
  void execute(const Ports& ports) override;

 private:
  const char* name_;
  InputSet given_;
  OutputSet wanted_;
  dnnl::stream stream_;
  dnnl::graph::compiled_partition partition_;
  std::vector<dnnl::graph::tensor> inputs_;
  std::vector<dnnl::graph::tensor> outputs_;
};

}  // namespace onedsl::onednn
