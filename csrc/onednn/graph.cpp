#include "graph.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine.hpp"

namespace onedsl::onednn {
namespace {

using dnnl::graph::logical_tensor;
using dnnl::graph::op;

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

const char* name_of(const logical_tensor::data_type type) {
  switch (type) {
    case logical_tensor::data_type::f32:
      return "f32";
    case logical_tensor::data_type::bf16:
      return "bf16";
    case logical_tensor::data_type::f16:
      return "f16";
    default:
      return "undef";
  }
}

const char* name_of(const logical_tensor::layout_type layout) {
  switch (layout) {
    case logical_tensor::layout_type::strided:
      return "strided";
    case logical_tensor::layout_type::any:
      return "any";
    case logical_tensor::layout_type::opaque:
      return "opaque";
    default:
      return "undef";
  }
}

const char* name_of(const logical_tensor::property_type property) {
  switch (property) {
    case logical_tensor::property_type::constant:
      return "constant";
    case logical_tensor::property_type::variable:
      return "variable";
    default:
      return "undef";
  }
}

GraphView::Tensor view_of(const logical_tensor& tensor) {
  const auto layout = tensor.get_layout_type();
  GraphView::Tensor view{tensor.get_id(), name_of(tensor.get_data_type()),    tensor.get_dims(), {},
                         name_of(layout), name_of(tensor.get_property_type())};
  if (layout == logical_tensor::layout_type::strided) view.strides = tensor.get_strides();
  return view;
}

std::vector<GraphView::Tensor> views_of(const std::vector<logical_tensor>& tensors) {
  std::vector<GraphView::Tensor> views;
  for (const logical_tensor& tensor : tensors) views.push_back(view_of(tensor));
  return views;
}

// Ids of the logical tensors: inputs, outputs, each by its enumerator, then intermediate tensors.
std::size_t id_of(const Input port) { return static_cast<std::size_t>(port); }
std::size_t id_of(const Output port) { return num_ports(Input{}) + static_cast<std::size_t>(port); }
constexpr std::size_t first_intermediate = num_ports(Input{}) + num_ports(Output{});

// The ops of an operation.
class Ops {
 public:
  explicit Ops(const Op& described) : described_(described) {
    switch (described.operation) {
      case Operation::training_backward:
        add_backward(tensor(Input::diff_dst));
        break;
      case Operation::forward_training:
        add_forward(tensor(Output::dst));
        break;
      case Operation::relu_forward_training:
        add_relu_forward();
        break;
      case Operation::relu_training_backward:
        add_relu_backward();
        break;
    }
  }

  const std::vector<op>& all() const { return ops_; }
  const std::vector<GraphView::Node>& nodes() const { return nodes_; }

 private:
  template <class Port>
  logical_tensor tensor(const Port port) const {
    return tensor(id_of(port), is_tensor(port));
  }
  logical_tensor new_intermediate() {
    return tensor(first_intermediate + num_intermediates_++, true);
  }

  logical_tensor tensor(const std::size_t id, const bool is_data) const {
    const logical_tensor::dims& dims = described_.dims;
    // dims{C} is a list of one size; without `dims` {C} would be a rank.
    const logical_tensor::dims channels =
        logical_tensor::dims{described_.data_format == "NXC" ? dims.back() : dims.at(1)};
    return {id, dnnl_type(is_data ? described_.data : described_.statistics),
            is_data ? dims : channels, logical_tensor::layout_type::strided};
  }

  // The name of an op is that of its kind.
  void add(const op::kind kind, const std::vector<logical_tensor>& inputs,
           const std::vector<logical_tensor>& outputs, const char* const name) {
    nodes_.push_back({ops_.size(), name, name, {}, views_of(inputs), views_of(outputs)});
    ops_.emplace_back(ops_.size(), kind, inputs, outputs, name);
  }

  // Sets an attribute of the op that was added last.
  template <class T>
  void set(const op::attr attribute, const char* const name, const T& value) {
    nodes_.back().attributes.emplace_back(name, value);
    ops_.back().set_attr<T>(attribute, value);
  }

  void add_batch_norm(const op::kind kind, const std::vector<logical_tensor>& inputs,
                      const std::vector<logical_tensor>& outputs, const char* const name) {
    add(kind, inputs, outputs, name);
    set(op::attr::epsilon, "epsilon", described_.epsilon);
    set(op::attr::data_format, "data_format", described_.data_format);
  }

  void add_backward(const logical_tensor& diff_dst) {
    std::vector<logical_tensor> inputs = {tensor(Input::src), diff_dst, tensor(Input::mean),
                                          tensor(Input::variance)};
    if (described_.inputs.has(Input::gamma)) inputs.push_back(tensor(Input::gamma));
    std::vector<logical_tensor> outputs = {tensor(Output::diff_src)};
    for (const Output sum : {Output::diff_gamma, Output::diff_beta}) {
      if (described_.outputs.has(sum)) outputs.push_back(tensor(sum));
    }
    add_batch_norm(op::kind::BatchNormTrainingBackward, inputs, outputs,
                   "BatchNormTrainingBackward");
  }

  void add_forward(const logical_tensor& dst) {
    std::vector<logical_tensor> inputs = {tensor(Input::src), tensor(Input::mean),
                                          tensor(Input::variance)};
    for (const Input port : {Input::gamma, Input::beta}) {
      if (described_.inputs.has(port)) inputs.push_back(tensor(port));
    }
    add_batch_norm(op::kind::BatchNormForwardTraining, inputs,
                   {dst, tensor(Output::running_mean), tensor(Output::running_variance),
                    tensor(Output::batch_mean), tensor(Output::batch_variance)},
                   "BatchNormForwardTraining");
    set(op::attr::momentum, "momentum", described_.momentum);
  }

  void add_relu_forward() {
    logical_tensor sum = new_intermediate();
    add_forward(sum);
    if (described_.inputs.has(Input::residual)) {
      const logical_tensor normalized = std::exchange(sum, new_intermediate());
      add(op::kind::Add, {normalized, tensor(Input::residual)}, {sum}, "Add");
    }
    if (std::isinf(described_.clip)) {
      add(op::kind::ReLU, {sum}, {tensor(Output::dst)}, "ReLU");
    } else {
      add(op::kind::Clamp, {sum}, {tensor(Output::dst)}, "Clamp");
      set_bounds();
    }
  }

  void add_relu_backward() {
    const logical_tensor masked = described_.outputs.has(Output::diff_residual)
                                      ? tensor(Output::diff_residual)
                                      : new_intermediate();
    const std::vector<logical_tensor> inputs = {tensor(Input::dst), tensor(Input::diff_dst)};
    const bool relu = std::isinf(described_.clip);
    add(relu ? op::kind::ReLUBackward : op::kind::ClampBackward, inputs, {masked},
        relu ? "ReLUBackward" : "ClampBackward");
    set(op::attr::use_dst, "use_dst", true);
    if (!relu) set_bounds();
    add_backward(masked);
  }

  void set_bounds() {
    set(op::attr::min, "min", 0.0F);
    set(op::attr::max, "max", described_.clip);
  }

  const Op& described_;
  std::vector<op> ops_;
  std::vector<GraphView::Node> nodes_;
  std::size_t num_intermediates_ = 0;
};

std::vector<std::size_t> ids_of(const std::vector<logical_tensor>& tensors) {
  std::vector<std::size_t> ids;
  for (const logical_tensor& tensor : tensors) ids.push_back(tensor.get_id());
  return ids;
}

// Sorts partitions topologically: each one after those whose outputs it reads.
std::vector<dnnl::graph::partition> sorted_topologically(
    std::vector<dnnl::graph::partition> partitions) {
  const auto depends = [](const dnnl::graph::partition& later,
                          const dnnl::graph::partition& first) {
    const std::vector<std::size_t> written = ids_of(first.get_output_ports());
    const std::vector<std::size_t> read = ids_of(later.get_input_ports());
    return std::any_of(read.begin(), read.end(), [&](const std::size_t id) {
      return std::find(written.begin(), written.end(), id) != written.end();
    });
  };
  std::vector<dnnl::graph::partition> sorted;
  while (!partitions.empty()) {
    const auto next = std::find_if(partitions.begin(), partitions.end(), [&](const auto& later) {
      return std::none_of(partitions.begin(), partitions.end(),
                          [&](const auto& first) { return depends(later, first); });
    });
    sorted.push_back(*next);
    partitions.erase(next);
  }
  return sorted;
}

}  // namespace

CompiledGraph::CompiledGraph(const Op& described)
    : op_(described), name_(signature_of(described.operation).name), stream_(cpu_engine()) {
  translate(std::string("building the graph of ") + name_, [&] {
    dnnl::graph::graph graph(dnnl::engine::kind::cpu);
    const Ops ops(described);
    for (const op& node : ops.all()) graph.add_op(node);
    graph.finalize();
    std::size_t covered = 0;
    for (const dnnl::graph::partition& partition : sorted_topologically(graph.get_partitions())) {
      if (!partition.is_supported()) break;
      covered += partition.get_ops_num();
      steps_.push_back(compile_step(partition));
    }
    if (covered != ops.all().size()) {
      raise(std::string("compiling ") + name_, "no kernel supports it", "unimplemented");
    }
  });
}

CompiledGraph::Step CompiledGraph::compile_step(const dnnl::graph::partition& partition) {
  Step step;
  const std::vector<logical_tensor> inputs = partition.get_input_ports();
  const std::vector<logical_tensor> outputs = partition.get_output_ports();
  step.partition = partition.compile(inputs, outputs, cpu_engine());
  step.view.id = partition.get_id();
  step.view.nodes = partition.get_ops();
  step.view.supported = partition.is_supported();
  step.input_ids = ids_of(inputs);
  step.output_ids = ids_of(outputs);
  for (const logical_tensor& input : inputs) {
    step.inputs.emplace_back(input, cpu_engine(), nullptr);
  }
  for (const logical_tensor& output : outputs) {
    step.outputs.emplace_back(output, cpu_engine(), nullptr);
    if (output.get_id() >= first_intermediate)
      intermediates_[output.get_id()].resize(output.get_mem_size());
  }
  return step;
}

void* CompiledGraph::memory_of(const std::size_t id, const Ports& ports) {
  if (id >= first_intermediate) return intermediates_.at(id).data();
  if (id >= num_ports(Input{})) return ports.out[static_cast<Output>(id - num_ports(Input{}))];
  // oneDNN has one type for inputs and outputs; it does not write to inputs.
  return const_cast<void*>(ports.in[static_cast<Input>(id)]);
}

void CompiledGraph::execute(const Ports& ports) {
  translate(std::string("running ") + name_, [&] {
    for (Step& step : steps_) {
      for (std::size_t i = 0; i < step.inputs.size(); ++i) {
        step.inputs[i].set_data_handle(memory_of(step.input_ids[i], ports));
      }
      for (std::size_t i = 0; i < step.outputs.size(); ++i) {
        step.outputs[i].set_data_handle(memory_of(step.output_ids[i], ports));
      }
      step.partition.execute(stream_, step.inputs, step.outputs);
    }
    stream_.wait();
  });
}

std::optional<GraphView> CompiledGraph::graph() const {
  return translate(std::string("inspecting the graph of ") + name_, [&] {
    GraphView view;
    view.nodes = Ops(op_).nodes();
    for (const Step& step : steps_) {
      const auto compiled = [&](const std::vector<std::size_t>& ids) {
        std::vector<GraphView::Tensor> views;
        for (const std::size_t id : ids) {
          views.push_back(view_of(step.partition.query_logical_tensor(id)));
        }
        return views;
      };
      GraphView::Partition& partition = view.partitions.emplace_back(step.view);
      partition.inputs = compiled(step.input_ids);
      partition.outputs = compiled(step.output_ids);
    }
    return view;
  });
}

std::size_t CompiledGraph::bytes() const noexcept {
  std::size_t bytes = 0;
  for (const auto& [id, memory] : intermediates_) bytes += memory.size();
  return bytes;
}

}  // namespace onedsl::onednn
