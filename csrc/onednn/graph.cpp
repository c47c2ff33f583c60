#include "graph.hpp"

#include "engine.hpp"

namespace onedsl::onednn {
namespace {

using dnnl::graph::logical_tensor;
using dnnl::graph::op;
using dnnl::graph::tensor;

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

logical_tensor describe(const Port port, const DataType type, const logical_tensor::dims& dims) {
  return {static_cast<std::size_t>(port), dnnl_type(type), dims,
          logical_tensor::layout_type::strided};
}

}  // namespace

CompiledOp::CompiledOp(const BatchNormTrainingBackward& described) : stream_(cpu_engine()) {
  const logical_tensor::dims& data = described.dims;
  const bool channels_last = described.data_format == "NXC";
  // The braces matter: dims{C} is a list of one size, while a bare {C} would be taken for a rank.
  const logical_tensor::dims channels =
      logical_tensor::dims{channels_last ? data.back() : data.at(1)};

  std::vector<logical_tensor> inputs = {
      describe(Port::src, described.data, data),
      describe(Port::diff_dst, described.data, data),
      describe(Port::mean, described.statistics, channels),
      describe(Port::variance, described.statistics, channels),
  };
  if (described.gamma) inputs.push_back(describe(Port::gamma, described.statistics, channels));

  std::vector<logical_tensor> outputs = {
      describe(Port::diff_src, described.data, data),
      describe(Port::diff_gamma, described.statistics, channels),
      describe(Port::diff_beta, described.statistics, channels),
  };
  outputs.resize(static_cast<std::size_t>(described.num_outputs));

  translate("building the graph of BatchNormTrainingBackward", [&] {
    op node(0, op::kind::BatchNormTrainingBackward, inputs, outputs, "BatchNormTrainingBackward");
    node.set_attr<float>(op::attr::epsilon, described.epsilon);
    node.set_attr<std::string>(op::attr::data_format, described.data_format);
    dnnl::graph::graph graph(dnnl::engine::kind::cpu);
    graph.add_op(node);
    graph.finalize();
    const std::vector<dnnl::graph::partition> partitions = graph.get_partitions();
    if (partitions.size() != 1 || !partitions[0].is_supported()) {
      raise("asked for BatchNormTrainingBackward", "no kernel supports it", "unimplemented");
    }
    partition_ = partitions[0].compile(inputs, outputs, cpu_engine());
    for (const logical_tensor& input : inputs) inputs_.emplace_back(input, cpu_engine(), nullptr);
    for (const logical_tensor& output : outputs) {
      outputs_.emplace_back(output, cpu_engine(), nullptr);
    }
  });
}

void CompiledOp::execute(const Pointers& pointers) {
  translate("running BatchNormTrainingBackward", [&] {
    for (std::size_t i = 0; i < inputs_.size(); ++i) inputs_[i].set_data_handle(pointers[i]);
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      outputs_[i].set_data_handle(pointers[static_cast<std::size_t>(Port::diff_src) + i]);
    }
    partition_.execute(stream_, inputs_, outputs_);
    stream_.wait();
  });
}

}  // namespace onedsl::onednn
