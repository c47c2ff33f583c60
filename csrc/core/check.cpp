#include "check.hpp"

#include <algorithm>

namespace onedsl {
namespace {

// Returns whether the statistics have a valid shape, and sets the channel axes of src.
bool find_channels(const CallRules& rules, const View& src, const View* const statistic,
                   ChannelAxes& axes) {
  if (rules.channel_axis) {
    const std::ptrdiff_t axis = *rules.channel_axis + (*rules.channel_axis < 0 ? src.rank : 0);
    if (axis < 0 || axis >= src.rank) return false;
    axes = ChannelAxes{1} << axis;
    return statistic == nullptr || (statistic->rank == 1 && statistic->shape[0] == src.shape[axis]);
  }
  if (statistic == nullptr || statistic->rank != src.rank) return false;
  for (std::ptrdiff_t axis = 0; axis < src.rank; ++axis) {
    if (statistic->shape[axis] == 1) continue;
    if (statistic->shape[axis] != src.shape[axis]) return false;
    axes |= ChannelAxes{1} << axis;
  }
  return true;
}

// Returns the reason unless an array has the type and shape of the first one of its kind.
std::optional<Reason> differs(const View& v, const View& like) {
  if (v.type != like.type) return Reason::like_type;
  if (!v.same_shape(like)) return Reason::like_shape;
  return std::nullopt;
}

template <class Port>
bool has_layout(const Port port, const View& v, const View& src) {
  return is_tensor(port) ? v.same_strides(src) : v.is_c_contiguous();
}

// Returns the memory of an array, faster if its size in bytes is known because it is dense.
std::optional<Memory> memory_of(const View& v, const std::optional<std::size_t> bytes) {
  if (!bytes) return v.memory();
  const auto begin = reinterpret_cast<std::uintptr_t>(v.data);
  return Memory{begin, begin + *bytes};
}

bool may_share(const CallRules& rules, const Output port, const View& output, const Input input,
               const View& other) {
  const auto is_pair = [&](const auto& pair) { return pair == std::pair(port, input); };
  return std::any_of(rules.in_place.begin(), rules.in_place.end(), is_pair) &&
         output.data == other.data && output.same_strides(other);
}

}  // namespace

std::optional<Rejection> check(const CallRules& rules, const InputSet expected,
                               const OutputSet outputs, const Arrays& arrays, Problem& problem) {
  std::optional<Rejection> found;
  const InputSet given = present(arrays.in);
  const auto all_inputs = [&](const InputSet ports, const auto& reason_of) {
    return ports.all_of([&](const Input port) {
      if (const std::optional<Reason> reason = reason_of(port)) found = Rejection{*reason, port};
      return !found;
    });
  };
  using Maybe = std::optional<Reason>;
  const bool is_complete = all_inputs(expected, [&](const Input port) -> Maybe {
    if (given.has(port)) return std::nullopt;
    if (!rules.optional.has(port)) return Reason::absent;
    const bool is_alone = rules.together.has(port) && !(given & rules.together).empty();
    return is_alone ? Maybe(Reason::alone) : std::nullopt;
  });
  if (!is_complete) return found;
  const OpConfig& config = problem;
  if (config.reads_epsilon() && !is_valid_epsilon(config.attributes.epsilon)) {
    return Rejection{Reason::epsilon};
  }

  const View& src = arrays.src();
  if (src.rank < rules.ranks.first || src.rank > rules.ranks.second) {
    return Rejection{Reason::rank, Input::src};
  }
  if (!rules.types.has(src.type)) return Rejection{Reason::type, Input::src};
  const View* statistic = nullptr;
  ChannelAxes axes = 0;
  const bool is_valid = all_inputs(given, [&](const Input port) -> Maybe {
    const View& v = *arrays.in[port];
    if (is_tensor(port)) return differs(v, src);
    if (statistic != nullptr) return differs(v, *statistic);
    statistic = &v;
    if (!rules.types.has({src.type, v.type})) return Reason::statistics_type;
    return find_channels(rules, src, statistic, axes) ? std::nullopt
                                                      : Maybe(Reason::statistics_shape);
  });
  if (!is_valid) return found;
  if (statistic == nullptr) {
    if (!find_channels(rules, src, nullptr, axes)) {
      return Rejection{Reason::statistics_shape, Input::mean};
    }
    if (rules.statistics_like_src && !rules.types.has({src.type, src.type})) {
      return Rejection{Reason::statistics_type};
    }
  }
  const bool computes_all = outputs == signature_of(problem.operation).outputs;
  if (!computes_all && rules.ignored && given.has(*rules.ignored)) {
    return Rejection{Reason::ignored, *rules.ignored};
  }
  const std::optional<MemoryOrder> order = memory_order(src, axes);
  if (order && order->geometry.elements() <
                   std::max(order->geometry.channels, std::int64_t{1}) * rules.least_values) {
    return Rejection{Reason::few_values, Input::src};
  }
  const bool src_is_dense = order && is_dense_in(src, *order);
  const bool may_be_strided = rules.strided_tensors && order;
  std::shared_ptr<Layouts> layouts;
  // Returns whether a tensor that is not like src, or a src that is not dense, can be used as it
  // is, and keeps its layout.
  const auto keep_layout = [&](const auto port, const View& v) {
    if (!may_be_strided || !is_tensor(port)) return false;
    std::optional<Layout> layout = layout_of(v, *order);
    if (!layout) return false;
    if (!layouts) layouts = std::make_shared<Layouts>();
    layouts->of(port) = *std::move(layout);
    return true;
  };
  const std::size_t tensor_bytes = src_is_dense ? src.bytes() : 0;
  const std::size_t statistic_bytes = statistic != nullptr ? statistic->bytes() : 0;
  const auto bytes_of = [&](const auto port, const bool is_dense) {
    const std::size_t bytes = is_tensor(port) ? tensor_bytes : statistic_bytes;
    return is_dense ? std::make_optional(bytes) : std::nullopt;
  };
  std::optional<Rejection> to_copy;
  PerPort<Input, Memory> used;
  const bool has_memory = all_inputs(given, [&](const Input port) {
    const View& v = *arrays.in[port];
    const bool is_dense = (src_is_dense || !is_tensor(port)) && has_layout(port, v, src);
    const bool is_usable = v.is_aligned() && (is_dense || keep_layout(port, v));
    if (!to_copy && !is_usable) to_copy = Rejection{Reason::layout, port};
    const std::optional<Memory> memory = memory_of(v, bytes_of(port, is_dense));
    if (memory) used[port] = *memory;
    return memory && v.holds(*memory) ? Maybe() : Reason::memory;
  });
  if (!has_memory) return found;
  if (arrays.outputs_given) {
    if (!arrays.outputs_match) return Rejection{Reason::outputs};
    PerPort<Output, Memory> written;
    const auto is_separate = [&](const Output port, const View& v, const Memory& memory) {
      given.all_of([&](const Input other) {
        const View& input = *arrays.in[other];
        if (memory.meets(used[other]) && !may_share(rules, port, v, other, input) &&
            input.touches(memory) && v.touches(used[other]) && !v.alternates_with(input)) {
          found = Rejection{Reason::overlap, port, other};
        }
        return !found;
      });
      outputs.all_of([&](const Output other) {
        if (!found && memory.meets(written[other]) && !v.alternates_with(*arrays.out[other])) {
          found = Rejection{Reason::overlap, port, other};
        }
        return !found;
      });
      return !found;
    };
    const bool are_valid = outputs.all_of([&](const Output port) {
      const View& v = *arrays.out[port];
      Maybe reason = differs(v, is_tensor(port) ? src : *statistic);
      if (!reason && !v.is_aligned()) reason = Reason::not_aligned;
      // If src must be copied, the layout is checked with the copy.
      const bool is_known = src_is_dense || !is_tensor(port) || may_be_strided;
      const bool is_dense = (src_is_dense || !is_tensor(port)) && has_layout(port, v, src);
      if (!reason && is_known && !is_dense && !keep_layout(port, v)) reason = Reason::layout;
      if (!reason && !v.writeable) reason = Reason::read_only;
      if (reason) {
        found = Rejection{*reason, port};
      } else if (v.data == nullptr) {  // allocated after the check
      } else if (!is_dense && !has_separate_elements(v)) {
        if (is_known) found = Rejection{Reason::overlap, port, port};
      } else {
        const std::optional<Memory> memory = memory_of(v, bytes_of(port, is_dense));
        if (!memory || !v.holds(*memory)) {
          found = Rejection{Reason::memory, port};
        } else if (is_separate(port, v, *memory)) {
          written[port] = *memory;
        }
      }
      return !found;
    });
    if (!are_valid) return found;
  }
  if (to_copy || !order) return to_copy;
  if (!arrays.outputs_given && !src_is_dense) {
    const std::vector<std::ptrdiff_t> strides = dense_strides(src);  // of results
    const View result{src.type, nullptr, src.rank, src.shape, strides.data()};
    outputs.for_each([&](const Output port) { keep_layout(port, result); });
  }
  problem.geometry = order->geometry;
  problem.layouts = std::move(layouts);
  problem.data = src.type;
  problem.statistics_type = statistic != nullptr ? statistic->type : DataType::f32;
  problem.inputs = given;
  problem.outputs = outputs;
  return std::nullopt;
}

std::optional<Rejection> check_shapes(const CallRules& rules, const OpConfig& config,
                                      const std::vector<std::optional<ArrayInfo>>& inputs) {
  const Signature& signature = signature_of(config.operation);
  Arrays arrays;
  PerPort<Input, std::vector<std::ptrdiff_t>> strides;
  std::size_t next = 0;
  signature.inputs.for_each([&](const Input port) {
    const std::optional<ArrayInfo>& info = inputs.at(next++);
    if (!info) return;
    const auto& [type, shape] = *info;
    const auto rank = static_cast<std::ptrdiff_t>(shape.size());
    strides[port] = c_strides(rank, shape.data());
    arrays.in[port] = View{type, nullptr, rank, shape.data(), strides[port].data()};
  });
  Problem problem{config, {}, {}, {}, {}, {}};
  return check(rules, signature.inputs, signature.outputs, arrays, problem);
}

}  // namespace onedsl
