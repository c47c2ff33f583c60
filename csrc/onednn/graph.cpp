#include "graph.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <utility>

#include "../core/convert_16bit.hpp"
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

DataType data_type_of(const std::string& name) {
  for (const DataType type : {DataType::f32, DataType::bf16, DataType::f16}) {
    if (name == name_of(type)) return type;
  }
  throw std::invalid_argument("onedsl does not pass \"" + name + "\" to oneDNN");
}

constexpr std::size_t line = 64;  // bytes of a cache line

}  // namespace

std::vector<PartitionView> partitions_of(const Nodes& nodes) {
  const ForkGuard guard;
  return translate("partitioning the graph of " + kinds_of(nodes), [&] {
    std::vector<PartitionView> views;
    for (const dnnl::graph::partition& part : partition(nodes)) views.push_back(view_of(part));
    return views;
  });
}

CompiledGraph::CompiledGraph(Nodes nodes, std::vector<TensorView> inputs,
                             std::vector<TensorView> outputs, Constants constants,
                             const int num_threads)
    : guard_(std::in_place),
      nodes_(std::move(nodes)),
      inputs_(std::move(inputs)),
      outputs_(std::move(outputs)),
      constants_(std::move(constants)),
      name_(kinds_of(nodes_)) {
  compile(num_threads);
  guard_.reset();
}

CompiledGraph::~CompiledGraph() { guard_.emplace(); }

void CompiledGraph::compile(const int num_threads) {
  const ThreadLimit limit(num_threads);
  translate("compiling the graph of " + name_, [&] {
    stream_ = dnnl::stream(cpu_engine());
    steps_.clear();
    slots_.clear();
    std::size_t covered = 0;
    for (const dnnl::graph::partition& part : partition(nodes_)) {
      if (!part.is_supported()) break;
      covered += part.get_ops_num();
      Step& step = steps_.emplace_back();
      step.view = view_of(part);
      step.partition = part.compile(part.get_input_ports(), part.get_output_ports(), cpu_engine());
      step.inputs = add_slots(part.get_input_ports());
      step.outputs = add_slots(part.get_output_ports());
    }
    if (covered != nodes_.size()) {
      raise("compiling the graph of " + name_, "the partition is not supported", "unimplemented");
    }
  });
  bind_slots();
  num_threads_ = num_threads;
  generation_ = fork_generation();
}

std::vector<dnnl::graph::tensor> CompiledGraph::add_slots(
    const std::vector<logical_tensor>& tensors) {
  std::vector<dnnl::graph::tensor> made;
  for (const logical_tensor& t : tensors) {
    made.emplace_back(t, cpu_engine(), nullptr);
    Slot& slot = slots_[t.get_id()];
    slot.type = data_type_of(name_in(types, t.get_data_type()));
    slot.bytes = std::max(slot.bytes, t.get_mem_size());
  }
  return made;
}

void CompiledGraph::bind_slots() {
  const auto bind = [&](const std::vector<TensorView>& ports,
                        std::optional<Port> Slot::* const port) {
    for (std::size_t i = 0; i < ports.size(); ++i) {
      const auto slot = slots_.find(ports[i].id);
      if (slot != slots_.end()) slot->second.*port = Port{i, data_type_of(ports[i].type)};
    }
  };
  bind(inputs_, &Slot::input);
  bind(outputs_, &Slot::output);
  scratch_bytes_ = line;
  for (auto& [id, slot] : slots_) {
    const auto constant = constants_.find(id);
    if (constant != constants_.end()) {
      slot.constant.assign(slot.bytes / sizeof(float), constant->second);
    }
    slot.offset = scratch_bytes_;
    scratch_bytes_ += slot.needs_scratch() ? (slot.bytes + line - 1) / line * line : 0;
  }
}

void CompiledGraph::execute(const std::vector<const void*>& inputs,
                            const std::vector<void*>& outputs) {
  const ForkGuard guard;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (generation_ != fork_generation()) compile(max_threads());
  const ThreadLimit limit(num_threads_);
  const auto free = [](std::byte* const memory) { std::free(memory); };
  const std::unique_ptr<std::byte, decltype(free)> scratch(
      static_cast<std::byte*>(std::aligned_alloc(line, scratch_bytes_)), free);
  if (!scratch) throw OneDNNError("no memory for the tensors of " + name_, "out_of_memory");
  for (auto& [id, slot] : slots_) {
    slot.memory = scratch.get() + slot.offset;
    if (!slot.constant.empty()) {
      slot.memory = slot.constant.data();
    } else if (slot.input) {
      const void* const own = inputs.at(slot.input->index);
      if (slot.input->type == slot.type) {
        // oneDNN has one type for inputs and outputs; it does not write to inputs.
        slot.memory = const_cast<void*>(own);
      } else {
        convert(slot.input->type, own, slot.type, slot.memory, slot.count());
      }
    } else if (slot.output && slot.output->type == slot.type) {
      slot.memory = outputs.at(slot.output->index);
    }
  }
  translate("running " + name_, [&] {
    for (Step& step : steps_) {
      set_memory(step.view.inputs, step.inputs);
      set_memory(step.view.outputs, step.outputs);
      step.partition.execute(stream_, step.inputs, step.outputs);
    }
    stream_.wait();
  });
  for (const auto& [id, slot] : slots_) {
    if (slot.output && slot.output->type != slot.type) {
      void* const own = outputs.at(slot.output->index);
      convert(slot.type, slot.memory, slot.output->type, own, slot.count());
    }
  }
}

void CompiledGraph::set_memory(const std::vector<TensorView>& views,
                               std::vector<dnnl::graph::tensor>& tensors) {
  for (std::size_t i = 0; i < views.size(); ++i) {
    tensors[i].set_data_handle(slots_.at(views[i].id).memory);
  }
}

std::vector<PartitionView> CompiledGraph::partitions() {
  const ForkGuard guard;
  const std::lock_guard<std::mutex> lock(mutex_);
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

}  // namespace onedsl::onednn
