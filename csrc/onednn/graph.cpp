#include "graph.hpp"

#include <cstddef>

#include "engine.hpp"

namespace onedsl::onednn {
namespace {

using dnnl::graph::logical_tensor;
using dnnl::graph::op;

op::kind kind_of(const Operation operation) {
  switch (operation) {
    case Operation::training_backward:
      return op::kind::BatchNormTrainingBackward;
    case Operation::forward_training:
      return op::kind::BatchNormForwardTraining;
    case Operation::relu_forward_training:
    case Operation::relu_training_backward:
      break;  // two ops: see relu.hpp
  }
  return op::kind::LastSymbol;
}

logical_tensor::data_type dnnl_type(const DataType type) {
  switch (type) {
    case DataType::f32:
      return logical_tensor::data_type::f32;
    case DataType::bf16:
      return logical_tensor::data_type::bf16;
    case DataType::f16:
      return logical_tensor::data_type::f16;
  }
  return logical_tensor::data_type::undef;
}

// The ids of the logical tensors: inputs first, each by its place in the list of ports.
std::size_t id_of(const Input port) { return static_cast<std::size_t>(port); }
std::size_t id_of(const Output port) { return num_ports(Input{}) + static_cast<std::size_t>(port); }

template <class Port>
std::vector<logical_tensor> describe(const Op& described, const PortSet<Port> ports) {
  const logical_tensor::dims& data = described.dims;
  // The braces matter: dims{C} is a list of one size, while a bare {C} would be taken for a rank.
  const logical_tensor::dims channels =
      logical_tensor::dims{described.data_format == "NXC" ? data.back() : data.at(1)};
  std::vector<logical_tensor> tensors;
  ports.for_each([&](const Port port) {
    tensors.emplace_back(id_of(port),
                         dnnl_type(is_tensor(port) ? described.data : described.statistics),
                         is_tensor(port) ? data : channels, logical_tensor::layout_type::strided);
  });
  return tensors;
}

}  // namespace

CompiledOp::CompiledOp(const Op& described)
    : name_(signature_of(described.operation).name),
      given_(described.given),
      wanted_(described.wanted),
      stream_(cpu_engine()) {
  const std::vector<logical_tensor> inputs = describe(described, given_);
  const std::vector<logical_tensor> outputs = describe(described, wanted_);
  translate(std::string("building the graph of ") + name_, [&] {
    op node(0, kind_of(described.operation), inputs, outputs, name_);
    node.set_attr<float>(op::attr::epsilon, described.epsilon);
    if (described.operation == Operation::forward_training) {
      node.set_attr<float>(op::attr::momentum, described.momentum);
    }
    node.set_attr<std::string>(op::attr::data_format, described.data_format);
    dnnl::graph::graph graph(dnnl::engine::kind::cpu);
    graph.add_op(node);
    graph.finalize();
    const std::vector<dnnl::graph::partition> partitions = graph.get_partitions();
    if (partitions.size() != 1 || !partitions[0].is_supported()) {
      raise(std::string("asked for ") + name_, "no kernel supports it", "unimplemented");
    }
    partition_ = partitions[0].compile(inputs, outputs, cpu_engine());
    for (const logical_tensor& input : inputs) inputs_.emplace_back(input, cpu_engine(), nullptr);
    for (const logical_tensor& output : outputs) {
      outputs_.emplace_back(output, cpu_engine(), nullptr);
    }
  });
}

void CompiledOp::execute(const Ports& ports) {
  translate(std::string("running ") + name_, [&] {
    std::size_t next = 0;
    given_.for_each([&](const Input port) {
      // Inputs too are void* for oneDNN; it does not write to them.
      inputs_[next++].set_data_handle(const_cast<void*>(ports.in[port]));
    });
    next = 0;
    wanted_.for_each([&](const Output port) { outputs_[next++].set_data_handle(ports.out[port]); });
    partition_.execute(stream_, inputs_, outputs_);
    stream_.wait();
  });
}

}  // namespace onedsl::onednn
