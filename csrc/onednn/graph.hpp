#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <oneapi/dnnl/dnnl_graph.hpp>
#include <optional>
#include <string>
#include <vector>

#include "../types.hpp"

// oneDNN's Graph API, as it is: one op, its ports, a compiled partition. Nothing here mends what
// oneDNN lacks (backend.hpp does).
namespace onedsl::onednn {

// The ports of BatchNormTrainingBackward, numbered as in the op's document. The numbers are the
// ids of the logical tensors as well.
enum class Port : std::size_t {
  src,
  diff_dst,
  mean,
  variance,
  gamma,
  diff_src,
  diff_gamma,
  diff_beta
};
constexpr std::size_t num_ports = 8;

// One op, as oneDNN's document describes it. dims are src's, in the order of data_format.
struct BatchNormTrainingBackward {
  float epsilon = 0;
  std::string data_format;  // "NXC" or "NCX"
  std::vector<std::int64_t> dims;
  DataType data = DataType::f32;
  DataType statistics = DataType::f32;
  bool gamma = true;
  int num_outputs = 3;  // diff_src, then diff_gamma, then diff_beta
};

// By port; those that an op was built without are not looked at.
using Pointers = std::array<void*, num_ports>;

// Something compiled for the CPU engine and for the thread count that OpenMP had then. Not for two
// threads at once.
class Executable {
 public:
  virtual ~Executable() = default;
  virtual void execute(const Pointers& pointers) = 0;
};

// A graph that holds this single op, finalized, partitioned and compiled.
class CompiledOp final : public Executable {
 public:
  explicit CompiledOp(const BatchNormTrainingBackward& op);
  void execute(const Pointers& pointers) override;

 private:
  dnnl::stream stream_;
  dnnl::graph::compiled_partition partition_;
  std::vector<dnnl::graph::tensor> inputs_;
  std::vector<dnnl::graph::tensor> outputs_;
};

}  // namespace onedsl::onednn
