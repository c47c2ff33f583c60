#include "graph.hpp"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <utility>

#include "../core/convert_16bit.hpp"
#include "../core/thread_limit.hpp"
#include "engine.hpp"
#include "kernel_guard.hpp"

namespace onedsl::onednn {
namespace {

using dnnl::graph::logical_tensor;
using dnnl::graph::op;

// ---- oneDNN's names ----

using Type = logical_tensor::data_type;
constexpr ByName<Type, 3> types = {{{name_of(DataType::f32), Type::f32},
                                    {name_of(DataType::bf16), Type::bf16},
                                    {name_of(DataType::f16), Type::f16}}};

using Layout = logical_tensor::layout_type;
constexpr ByName<Layout, 3> layouts = {
    {{"strided", Layout::strided}, {"any", Layout::any}, {"opaque", Layout::opaque}}};

using Property = logical_tensor::property_type;
constexpr ByName<Property, 3> properties = {{{"undef", Property::undef},
                                             {"constant", Property::constant},
                                             {"variable", Property::variable}}};

using Attribute = op::attr;
constexpr ByName<Attribute, 7> attribute_names = {{
    {"epsilon", Attribute::epsilon},
    {"momentum", Attribute::momentum},
    {"data_format", Attribute::data_format},
    {"alpha", Attribute::alpha},
    {"use_dst", Attribute::use_dst},
    {"min", Attribute::min},
    {"max", Attribute::max},
}};

template <class Value, std::size_t n>
std::string name_in(const ByName<Value, n>& names, const Value value) {
  for (const auto& [name, known] : names) {
    if (known == value) return name;
  }
  return "undef";
}

template <class Value, std::size_t n>
Value value_in(const ByName<Value, n>& names, const std::string& name) {
  for (const auto& [known, value] : names) {
    if (name == known) return value;
  }
  throw std::invalid_argument("onedsl does not pass \"" + name + "\" to oneDNN");
}

// ---- Conversion between tuples and oneDNN's objects ----

void check_lengths(const Sizes& dims, const Sizes& strides) {
  if (dims.size() == strides.size()) return;
  throw std::invalid_argument("dims and strides must have equal lengths");
}

logical_tensor to_onednn(const TensorTuple& tuple) {
  const auto& [id, type, dims, strides, layout, property] = tuple;
  if (dims.size() > DNNL_MAX_NDIMS) {
    throw dnnl::error(dnnl_unimplemented, "tensors must have at most 12 dimensions");
  }
  check_lengths(dims, strides);
  const Type known_type = value_in(types, type);
  const Property known_property = value_in(properties, property);
  if (layout == "strided") return {id, known_type, dims, strides, known_property};
  return {id, known_type, dims, value_in(layouts, layout), known_property};
}

std::vector<logical_tensor> to_onednn(const TensorTuples& tuples) {
  std::vector<logical_tensor> tensors;
  for (const TensorTuple& tuple : tuples) tensors.push_back(to_onednn(tuple));
  return tensors;
}

op to_onednn(const Node& node) {
  const auto& [id, name, kind, attributes, inputs, outputs] = node;
  op result(id, value_in(op_kinds, kind).value, to_onednn(inputs), to_onednn(outputs), name);
  for (const auto& [attribute, value] : attributes) {
    const Attribute known = value_in(attribute_names, attribute);
    std::visit([&](const auto& v) { result.set_attr(known, v); }, value);
  }
  return result;
}

TensorTuple to_tuple(const logical_tensor& tensor) {
  const Layout layout = tensor.get_layout_type();
  return {tensor.get_id(),          name_in(types, tensor.get_data_type()),
          tensor.get_dims(),        layout == Layout::strided ? tensor.get_strides() : Sizes(),
          name_in(layouts, layout), name_in(properties, tensor.get_property_type())};
}

PartitionTuple to_tuple(const dnnl::graph::partition& partition) {
  const auto to_tuples = [](const std::vector<logical_tensor>& tensors) {
    TensorTuples tuples;
    for (const logical_tensor& tensor : tensors) tuples.push_back(to_tuple(tensor));
    return tuples;
  };
  return {partition.get_id(), partition.get_ops(), partition.is_supported(),
          to_tuples(partition.get_input_ports()), to_tuples(partition.get_output_ports())};
}

// ---- Partitions ----

// oneDNN sorts them topologically.
std::vector<dnnl::graph::partition> partition(const Nodes& nodes) {
  dnnl::graph::graph graph(dnnl::engine::kind::cpu);
  for (const Node& node : nodes) graph.add_op(to_onednn(node));
  graph.finalize();
  return graph.get_partitions();
}

// For error messages.
std::string kinds_of(const Nodes& nodes) {
  std::string names;
  for (const Node& node : nodes) names += (names.empty() ? "" : " + ") + std::get<2>(node);
  return names;
}

DataType type_of(const std::string& name) {
  value_in(types, name);  // throws if it is none of oneDNN's
  return data_type_of(name).value();
}

std::vector<GraphArray> ports_of(const TensorTuples& tuples) {
  std::vector<GraphArray> ports;
  for (const auto& [id, type, dims, strides, layout, property] : tuples) {
    check_lengths(dims, strides);
    ports.push_back({id, ports.size(), type_of(type), dims, strides});
  }
  return ports;
}

const GraphArray* find(const std::vector<GraphArray>& ports, const std::size_t id) {
  const auto is_it = [&](const GraphArray& port) { return port.id == id; };
  const auto found = std::find_if(ports.begin(), ports.end(), is_it);
  return found == ports.end() ? nullptr : &*found;
}

}  // namespace

std::vector<PartitionTuple> partitions_of(const Nodes& nodes) {
  return translate("partitioning the graph of " + kinds_of(nodes), [&] {
    std::vector<PartitionTuple> tuples;
    for (const dnnl::graph::partition& part : partition(nodes)) tuples.push_back(to_tuple(part));
    return tuples;
  });
}

CompiledGraph::CompiledGraph(Nodes nodes, const TensorTuples& inputs, const TensorTuples& outputs,
                             Constants constants, const int num_threads)
    : nodes_(std::move(nodes)),
      inputs_(ports_of(inputs)),
      outputs_(ports_of(outputs)),
      constants_(std::move(constants)),
      name_(kinds_of(nodes_)),
      max_threads_(num_threads),
      num_threads_(num_threads) {
  select_program(num_threads);
}

CompiledGraph::~CompiledGraph() {
  const KernelGuard guard;
  programs_.clear();
}

CompiledGraph::Program CompiledGraph::compile(const int num_threads) const {
  const ThreadLimit limit(num_threads, openmp_of_onednn());
  Program program;
  program.num_threads = num_threads;
  translate("compiling the graph of " + name_, [&] {
    program.stream = dnnl::stream(cpu_engine());
    std::size_t covered = 0;
    for (const dnnl::graph::partition& part : partition(nodes_)) {
      if (!part.is_supported()) break;
      covered += part.get_ops_num();
      const auto inputs = part.get_input_ports();
      const auto outputs = part.get_output_ports();
      program.steps.push_back({part, part.compile(inputs, outputs, cpu_engine()),
                               program.side_of(inputs), program.side_of(outputs)});
    }
    if (covered != nodes_.size()) {
      raise("compiling the graph of " + name_, "the partition is not supported", "unimplemented");
    }
  });
  assign_slots(program);
  return program;
}

void CompiledGraph::select_program(const int num_threads) {
  const auto found = std::find_if(programs_.begin(), programs_.end(), [&](const Program& program) {
    return program.num_threads == num_threads;
  });
  if (found != programs_.end()) {
    programs_.splice(programs_.begin(), programs_, found);
  } else {
    const KernelGuard guard;
    programs_.push_front(compile(num_threads));
    if (programs_.size() > most_programs) programs_.pop_back();
  }
  num_threads_ = num_threads;
}

CompiledGraph::Side CompiledGraph::Program::side_of(const std::vector<logical_tensor>& tensors) {
  Side side;
  for (const logical_tensor& t : tensors) {
    Slot& slot = slots[t.get_id()];
    slot.type = type_of(name_in(types, t.get_data_type()));
    slot.bytes = std::max(slot.bytes, t.get_mem_size());
    side.slots.push_back(&slot);
    side.tensors.emplace_back(t, cpu_engine(), nullptr);
  }
  return side;
}

void CompiledGraph::assign_slots(Program& program) const {
  program.scratch_bytes = cache_line;
  for (auto& [id, slot] : program.slots) {
    slot.input = find(inputs_, id);
    slot.output = find(outputs_, id);
    const auto constant = constants_.find(id);
    if (constant != constants_.end()) {
      const std::vector<float> values(slot.count(), constant->second);
      slot.constant.resize(slot.bytes);
      convert(DataType::f32, values.data(), slot.type, slot.constant.data(), values.size());
    }
    slot.offset = program.scratch_bytes;
    program.scratch_bytes +=
        slot.needs_scratch() ? (slot.bytes + cache_line - 1) / cache_line * cache_line : 0;
  }
}

void CompiledGraph::execute(const std::vector<const void*>& inputs,
                            const std::vector<void*>& outputs, const int available) {
  check_engine();
  const std::lock_guard<std::mutex> lock(mutex_);
  select_program(available);
  Program& program = programs_.front();
  const ThreadLimit limit(available, openmp_of_onednn());
  const auto free = [](std::byte* const memory) { std::free(memory); };
  const std::unique_ptr<std::byte, decltype(free)> scratch(
      static_cast<std::byte*>(std::aligned_alloc(cache_line, program.scratch_bytes)), free);
  if (!scratch) throw std::bad_alloc();
  for (auto& [id, slot] : program.slots) {
    slot.memory = scratch.get() + slot.offset;
    if (!slot.constant.empty()) {
      slot.memory = slot.constant.data();
    } else if (slot.input != nullptr) {
      const void* const own = inputs.at(slot.input->index);
      if (slot.input->type == slot.type) {
        // oneDNN has one type for inputs and outputs; it does not write to inputs.
        slot.memory = const_cast<void*>(own);
      } else {
        convert(slot.input->type, own, slot.type, slot.memory, slot.count());
      }
    } else if (slot.output != nullptr && slot.output->type == slot.type) {
      slot.memory = outputs.at(slot.output->index);
    }
  }
  translate("running " + name_, [&] {
    const GuardedEnd guarded_end;
    for (Step& step : program.steps) {
      for (Side* const side : {&step.inputs, &step.outputs}) {
        for (std::size_t i = 0; i < side->slots.size(); ++i) {
          side->tensors[i].set_data_handle(side->slots[i]->memory);
        }
      }
      step.compiled.execute(program.stream, step.inputs.tensors, step.outputs.tensors);
    }
    program.stream.wait();
  });
  for (const auto& [id, slot] : program.slots) {
    if (slot.output != nullptr && slot.output->type != slot.type) {
      void* const own = outputs.at(slot.output->index);
      convert(slot.type, slot.memory, slot.output->type, own, slot.count());
    }
  }
}

std::vector<PartitionTuple> CompiledGraph::partitions() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return translate("inspecting the graph of " + name_, [&] {
    std::vector<PartitionTuple> tuples;
    for (const Step& step : programs_.front().steps) {
      auto& [id, ops, supported, inputs, outputs] = tuples.emplace_back(to_tuple(step.partition));
      for (TensorTuples* const tensors : {&inputs, &outputs}) {
        for (TensorTuple& t : *tensors) {
          t = to_tuple(step.compiled.query_logical_tensor(std::get<0>(t)));
        }
      }
    }
    return tuples;
  });
}

}  // namespace onedsl::onednn
