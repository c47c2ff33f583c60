#include "graph.hpp"

#include <array>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "../core/geometry.hpp"
#include "../core/threads.hpp"
#include "engine.hpp"

namespace onedsl::onednn {
namespace {

using dnnl::graph::logical_tensor;
using dnnl::graph::op;

// ---- oneDNN's names ----

template <class Value, std::size_t n>
using Names = std::array<std::pair<const char*, Value>, n>;

using Type = logical_tensor::data_type;
constexpr Names<Type, 3> types = {{{"f32", Type::f32}, {"bf16", Type::bf16}, {"f16", Type::f16}}};

using Layout = logical_tensor::layout_type;
constexpr Names<Layout, 3> layouts = {
    {{"strided", Layout::strided}, {"any", Layout::any}, {"opaque", Layout::opaque}}};

using Property = logical_tensor::property_type;
constexpr Names<Property, 2> properties = {
    {{"constant", Property::constant}, {"variable", Property::variable}}};

using Kind = op::kind;
constexpr Names<Kind, 7> kinds = {{
    {"BatchNormTrainingBackward", Kind::BatchNormTrainingBackward},
    {"BatchNormForwardTraining", Kind::BatchNormForwardTraining},
    {"Add", Kind::Add},
    {"Clamp", Kind::Clamp},
    {"ClampBackward", Kind::ClampBackward},
    {"ReLU", Kind::ReLU},
    {"ReLUBackward", Kind::ReLUBackward},
}};

using Attribute = op::attr;
constexpr Names<Attribute, 6> attribute_names = {{
    {"epsilon", Attribute::epsilon},
    {"momentum", Attribute::momentum},
    {"data_format", Attribute::data_format},
    {"use_dst", Attribute::use_dst},
    {"min", Attribute::min},
    {"max", Attribute::max},
}};

template <class Value, std::size_t n>
std::string name_in(const Names<Value, n>& names, const Value value) {
  for (const auto& [name, known] : names) {
    if (known == value) return name;
  }
  return "undef";
}

template <class Value, std::size_t n>
Value value_in(const Names<Value, n>& names, const std::string& name) {
  for (const auto& [known, value] : names) {
    if (name == known) return value;
  }
  throw std::invalid_argument("onedsl does not pass \"" + name + "\" to oneDNN");
}

// ---- Conversion between graphs as data and oneDNN's objects ----

logical_tensor to_onednn(const TensorView& view) {
  const Type type = value_in(types, view.type);
  const Property property =
      view.property == "undef" ? Property::undef : value_in(properties, view.property);
  if (view.layout == "strided") return {view.id, type, view.dims, view.strides, property};
  return {view.id, type, view.dims, value_in(layouts, view.layout), property};
}

std::vector<logical_tensor> to_onednn(const std::vector<TensorView>& views) {
  std::vector<logical_tensor> tensors;
  for (const TensorView& view : views) tensors.push_back(to_onednn(view));
  return tensors;
}

op to_onednn(const NodeView& node) {
  op result(node.id, value_in(kinds, node.kind), to_onednn(node.inputs), to_onednn(node.outputs),
            node.name);
  for (const auto& [name, value] : node.attributes) {
    const Attribute attribute = value_in(attribute_names, name);
    std::visit([&](const auto& v) { result.set_attr(attribute, v); }, value);
  }
  return result;
}

TensorView view_of(const logical_tensor& tensor) {
  const Layout layout = tensor.get_layout_type();
  TensorView view{tensor.get_id(),          name_in(types, tensor.get_data_type()),
                  tensor.get_dims(),        {},
                  name_in(layouts, layout), name_in(properties, tensor.get_property_type())};
  if (layout == Layout::strided) view.strides = tensor.get_strides();
  return view;
}

std::vector<TensorView> views_of(const std::vector<logical_tensor>& tensors) {
  std::vector<TensorView> views;
  for (const logical_tensor& tensor : tensors) views.push_back(view_of(tensor));
  return views;
}

PartitionView view_of(const dnnl::graph::partition& partition) {
  return {partition.get_id(), partition.get_ops(), partition.is_supported(),
          views_of(partition.get_input_ports()), views_of(partition.get_output_ports())};
}

// ---- The graphs of the operations ----

class NodesOfOperation {
  using Attributes = decltype(NodeView::attributes);

 public:
  NodesOfOperation(const Problem& problem, const std::vector<std::int64_t>& dims,
                   const std::string& data_format)
      : problem_(problem),
        dims_(dims),
        channels_(data_format == "NXC" ? dims.back() : dims[1]),
        batch_norm_{{"epsilon", static_cast<float>(problem.attributes.epsilon)},
                    {"data_format", data_format}} {
    const auto clip = static_cast<float>(problem.attributes.clip);
    if (!std::isinf(clip)) bounds_ = {{"min", 0.0F}, {"max", clip}};
    switch (problem.operation) {
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

  Nodes take() { return std::move(nodes_); }

 private:
  template <class Port>
  TensorView tensor(const Port port) const {
    return tensor(id_of(port), is_tensor(port));
  }
  TensorView new_intermediate() { return tensor(first_intermediate + num_intermediates_++, true); }

  TensorView tensor(const std::size_t id, const bool is_data) const {
    TensorView view;
    view.id = id;
    view.type = name_of(is_data ? problem_.data : DataType::f32);
    view.dims = is_data ? dims_ : std::vector<std::int64_t>{channels_};
    view.strides = c_strides(static_cast<std::ptrdiff_t>(view.dims.size()), view.dims.data());
    return view;
  }

  // The name of an op is that of its kind.
  void add(const char* const name, const Attributes& attributes,
           const std::vector<TensorView>& inputs, const std::vector<TensorView>& outputs) {
    nodes_.push_back({nodes_.size(), name, name, attributes, inputs, outputs});
  }

  void add_backward(const TensorView& diff_dst) {
    add("BatchNormTrainingBackward", batch_norm_,
        {tensor(Input::src), diff_dst, tensor(Input::mean), tensor(Input::variance),
         tensor(Input::gamma)},
        {tensor(Output::diff_src), tensor(Output::diff_gamma), tensor(Output::diff_beta)});
  }

  void add_forward(const TensorView& dst) {
    batch_norm_.emplace_back("momentum", static_cast<float>(problem_.attributes.momentum));
    add("BatchNormForwardTraining", batch_norm_,
        {tensor(Input::src), tensor(Input::mean), tensor(Input::variance), tensor(Input::gamma),
         tensor(Input::beta)},
        {dst, tensor(Output::running_mean), tensor(Output::running_variance),
         tensor(Output::batch_mean), tensor(Output::batch_variance)});
  }

  void add_relu_forward() {
    TensorView sum = new_intermediate();
    add_forward(sum);
    if (problem_.optional_tensors.has(Input::residual)) {
      const TensorView normalized = std::exchange(sum, new_intermediate());
      add("Add", {}, {normalized, tensor(Input::residual)}, {sum});
    }
    add(bounds_.empty() ? "ReLU" : "Clamp", bounds_, {sum}, {tensor(Output::dst)});
  }

  void add_relu_backward() {
    const TensorView masked = problem_.outputs.has(Output::diff_residual)
                                  ? tensor(Output::diff_residual)
                                  : new_intermediate();
    const char* const name = bounds_.empty() ? "ReLUBackward" : "ClampBackward";
    bounds_.emplace_back("use_dst", true);
    add(name, bounds_, {tensor(Input::dst), tensor(Input::diff_dst)}, {masked});
    add_backward(masked);
  }

  const Problem& problem_;
  const std::vector<std::int64_t>& dims_;
  std::int64_t channels_;
  Attributes batch_norm_;  // of the op
  Attributes bounds_;      // of the ReLU; empty without an upper bound
  Nodes nodes_;
  std::size_t num_intermediates_ = 0;
};

// ---- Partitions ----

// oneDNN sorts them topologically.
std::vector<dnnl::graph::partition> partition(const Nodes& nodes) {
  dnnl::graph::graph graph(dnnl::engine::kind::cpu);
  for (const NodeView& node : nodes) graph.add_op(to_onednn(node));
  graph.finalize();
  return graph.get_partitions();
}

// For error messages.
std::string kinds_of(const Nodes& nodes) {
  std::string names;
  for (const NodeView& node : nodes) names += (names.empty() ? "" : " + ") + node.kind;
  return names;
}

}  // namespace

Nodes nodes_of(const Problem& problem, const std::vector<std::int64_t>& dims,
               const std::string& data_format) {
  return NodesOfOperation(problem, dims, data_format).take();
}

std::vector<PartitionView> partitions_of(const Nodes& nodes) {
  return translate("partitioning the graph of " + kinds_of(nodes), [&] {
    std::vector<PartitionView> views;
    for (const dnnl::graph::partition& part : partition(nodes)) views.push_back(view_of(part));
    return views;
  });
}

CompiledGraph::CompiledGraph(Nodes nodes, const int num_threads)
    : guard_(std::in_place), nodes_(std::move(nodes)), name_(kinds_of(nodes_)) {
  compile(num_threads);
  guard_.reset();
}

CompiledGraph::~CompiledGraph() { guard_.emplace(); }

void CompiledGraph::compile(const int num_threads) {
  const ThreadLimit limit(num_threads);
  translate("compiling the graph of " + name_, [&] {
    stream_ = dnnl::stream(cpu_engine());
    steps_.clear();
    std::size_t covered = 0;
    for (const dnnl::graph::partition& part : partition(nodes_)) {
      if (!part.is_supported()) break;
      covered += part.get_ops_num();
      const std::vector<logical_tensor> inputs = part.get_input_ports();
      const std::vector<logical_tensor> outputs = part.get_output_ports();
      Step& step = steps_.emplace_back();
      step.view = view_of(part);
      step.partition = part.compile(inputs, outputs, cpu_engine());
      for (const logical_tensor& input : inputs) {
        step.inputs.emplace_back(input, cpu_engine(), nullptr);
      }
      for (const logical_tensor& output : outputs) {
        step.outputs.emplace_back(output, cpu_engine(), nullptr);
        if (nodes_.size() > 1 && output.get_id() >= first_intermediate) {
          intermediates_[output.get_id()].resize(output.get_mem_size());
        }
      }
    }
    if (covered != nodes_.size()) {
      raise("compiling the graph of " + name_, "the partition is not supported", "unimplemented");
    }
  });
  num_threads_ = num_threads;
  generation_ = fork_generation();
}

void CompiledGraph::execute(const std::function<void*(std::size_t)>& memory) {
  const ForkGuard guard;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (generation_ != fork_generation()) compile(max_threads());
  const ThreadLimit limit(num_threads_);
  const auto bind = [&](const std::vector<TensorView>& views,
                        std::vector<dnnl::graph::tensor>& tensors) {
    for (std::size_t i = 0; i < views.size(); ++i) {
      const auto own = intermediates_.find(views[i].id);
      tensors[i].set_data_handle(own == intermediates_.end() ? memory(views[i].id)
                                                             : own->second.data());
    }
  };
  translate("running " + name_, [&] {
    for (Step& step : steps_) {
      bind(step.view.inputs, step.inputs);
      bind(step.view.outputs, step.outputs);
      step.partition.execute(stream_, step.inputs, step.outputs);
    }
    stream_.wait();
  });
}

std::vector<PartitionView> CompiledGraph::partitions() const {
  return translate("inspecting the graph of " + name_, [&] {
    std::vector<PartitionView> views;
    for (const Step& step : steps_) {
      PartitionView& view = views.emplace_back(step.view);
      for (std::vector<TensorView>* const tensors : {&view.inputs, &view.outputs}) {
        for (TensorView& t : *tensors) t = view_of(step.partition.query_logical_tensor(t.id));
      }
    }
    return views;
  });
}

std::size_t CompiledGraph::bytes() const noexcept {
  std::size_t bytes = 0;
  for (const auto& [id, memory] : intermediates_) bytes += memory.size();
  return bytes;
}

}  // namespace onedsl::onednn
