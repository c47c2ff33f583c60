#include "check.hpp"

#include <algorithm>

namespace onedsl {
namespace {

// Returns whether the statistics have a valid shape, and sets the channel axes of src.
bool find_channels(const CallRules& rules, const View& src, const View* const statistic,
                   ChannelAxes& axes) {
  if (rules.channel_axis) {
    const std::optional<std::ptrdiff_t> axis = axis_at(*rules.channel_axis, src.rank);
    if (!axis) return false;
    axes = ChannelAxes{1} << *axis;
    return statistic == nullptr ||
           (statistic->rank == 1 && statistic->shape[0] == src.shape[*axis]);
  }
  if (statistic == nullptr || statistic->rank != src.rank) return false;
  for (std::ptrdiff_t axis = 0; axis < src.rank; ++axis) {
    if (statistic->shape[axis] == 1) continue;
    if (statistic->shape[axis] != src.shape[axis]) return false;
    axes |= ChannelAxes{1} << axis;
  }
  return true;
}

using Found = std::optional<Rejection>;

// Returns the first rejection that find(port) returns.
template <class Port, class Find>
Found first_of(const PortSet<Port> ports, const Find& find) {
  Found found;
  ports.all_of([&](const Port port) {
    found = find(port);
    return !found;
  });
  return found;
}

// Rejects an array unless it has the type and shape of the first one of its kind.
Found differs(const AnyPort port, const View& v, const View& like) {
  if (v.type != like.type) return Rejection{Reason::like_type, port};
  if (!v.same_shape(like)) return Rejection{Reason::like_shape, port};
  return std::nullopt;
}

// The steps of `check`. Each returns the first rejection, and uses what those before it found.
class CallCheck {
 public:
  CallCheck(const CallRules& rules, Call& call) : rules_(rules), call_(call) {
    call.given = present(call.in);
  }

  Found check_presence() const {
    // The gradient reads gamma and beta together where it recomputes dst.
    const bool is_recomputed = !call_.given.has(Input::dst);
    return first_of(call_.inputs, [&](const Input port) -> Found {
      if (call_.given.has(port)) return std::nullopt;
      if (!rules_.optional.has(port)) return Rejection{Reason::absent, port};
      const bool is_alone = is_recomputed && rules_.all_or_none.has(port) &&
                            !(call_.given & rules_.all_or_none).empty();
      return is_alone ? Found(Rejection{Reason::all_or_none, port}) : std::nullopt;
    });
  }

  Found check_combination() const {
    const InputSet given = call_.given & rules_.alternatives;
    if (given == rules_.alternatives && !given.empty()) {
      return Rejection{Reason::alternatives, Input::dst, Input::residual};
    }
    const OutputSet optional = call_.outputs - signature_of(call_.operation).required_outputs;
    if (!rules_.alternatives.empty() && rules_.outputs_need_alternative && given.empty() &&
        !optional.empty()) {
      return Rejection{Reason::one_of, Output::diff_residual};
    }
    if (call_.given.has(Input::dst) && !call_.attributes.derivative_follows_from_dst()) {
      return Rejection{Reason::activation, Input::dst};
    }
    return std::nullopt;
  }

  // Also finds the statistics and the channel axes.
  Found check_types_and_shapes() {
    const View& src = call_.src();
    if (src.rank < rules_.ranks.first || src.rank > rules_.ranks.second) {
      return Rejection{Reason::rank, Input::src};
    }
    if (!rules_.types.has(src.type)) return Rejection{Reason::type, Input::src};
    Found found = first_of(call_.given, [&](const Input port) -> Found {
      const View& v = *call_.in[port];
      if (is_tensor(port)) return differs(port, v, src);
      if (statistic_ != nullptr) return differs(port, v, *statistic_);
      statistic_ = &v;
      if (!rules_.types.has({src.type, v.type})) return Rejection{Reason::statistics_type, port};
      const bool is_valid = find_channels(rules_, src, statistic_, channel_axes_);
      return is_valid ? std::nullopt : Found(Rejection{Reason::statistics_shape, port});
    });
    if (found || statistic_ != nullptr) return found;
    if (!find_channels(rules_, src, nullptr, channel_axes_)) {
      return Rejection{Reason::statistics_shape, Input::mean};
    }
    const bool is_valid = !rules_.statistics_like_src || rules_.types.has({src.type, src.type});
    return is_valid ? std::nullopt : Found(Rejection{Reason::statistics_type});
  }

  // Also finds the memory order of src.
  Found check_limits() {
    const bool computes_all = call_.outputs == signature_of(call_.operation).outputs;
    if (!computes_all && rules_.ignored && call_.given.has(*rules_.ignored)) {
      return Rejection{Reason::ignored, *rules_.ignored};
    }
    const View& src = call_.src();
    const std::optional<MemoryOrder> order = memory_order(src, channel_axes_);
    if (!order) return Rejection{Reason::size, Input::src};
    order_ = *order;
    const Geometry& g = order_.geometry;
    if (g.elements() < std::max(g.channels, std::int64_t{1}) * rules_.min_values) {
      return Rejection{Reason::few_values, Input::src};
    }
    tensor_bytes_ = src.bytes();
    if (statistic_ != nullptr) statistic_bytes_ = statistic_->bytes();
    return std::nullopt;
  }

  // Also finds the inputs that must be copied, and the memory and pitches of the others.
  Found check_memory_of_inputs() {
    return first_of(call_.given, [&](const Input port) -> Found {
      const View& v = *call_.in[port];
      bool dense = false;
      const bool is_readable = is_supported(port, v, dense);
      if (!v.is_aligned() || !is_readable) {
        add_repair({v.is_aligned() ? Reason::layout : Reason::not_aligned, port});
        repairable_->to_copy.add(port);
      }
      const std::optional<Memory> memory = memory_of(port, v, dense);
      if (!memory || !v.holds(*memory)) return Rejection{Reason::memory, port};
      read_[port] = *memory;
      return std::nullopt;
    });
  }

  Found check_outputs() {
    if (!call_.outputs_described) return std::nullopt;
    if (!call_.outputs_match) return Rejection{Reason::outputs};
    return first_of(call_.outputs, [&](const Output port) -> Found {
      const View& v = *call_.out[port];
      const View* const like = is_tensor(port) ? &call_.src() : statistic_;
      if (like == nullptr) return Rejection{Reason::absent, Input::mean};
      if (const Found found = differs(port, v, *like)) return found;
      if (!v.is_aligned()) return Rejection{Reason::not_aligned, port};
      bool dense = false;
      if (!is_supported(port, v, dense)) {
        if (!is_tensor(port)) return Rejection{Reason::layout, port};
        add_repair({Reason::layout, port});
        repairable_->to_copy_back.add(port);
      }
      if (!v.writeable) return Rejection{Reason::read_only, port};
      if (v.data == nullptr) return std::nullopt;  // allocated after the check
      if (!dense && !has_separate_elements(v)) return Rejection{Reason::overlap, port, port};
      const std::optional<Memory> memory = memory_of(port, v, dense);
      if (!memory || !v.holds(*memory)) return Rejection{Reason::memory, port};
      const Found found = check_overlap(port, v, *memory);
      written_[port] = *memory;
      return found;
    });
  }

  // Completes the call, or returns what must be copied. This comes last.
  Found complete() {
    const View& src = call_.src();
    if (repairable_) {
      repairable_->strides = dense_strides(src, order_);
      return repairable_;
    }
    const Pitch dense = order_.geometry.dense_pitch();
    if (!call_.outputs_described) {
      (call_.outputs & output_tensors).for_each([&](const Output port) {
        call_.pitches.of(port) = dense;
      });
      if (!is_dense_in(src, order_)) call_.dense_strides = dense_strides(src, order_);
    }
    call_.geometry = order_.geometry;
    call_.data = src.type;
    call_.statistics_type = statistic_ != nullptr ? statistic_->type : DataType::f32;
    return std::nullopt;
  }

 private:
  // Returns whether the layout of an array is supported, and keeps its pitch; `dense` is whether it
  // has no gaps.
  template <class Port>
  bool is_supported(const Port port, const View& v, bool& dense) {
    if (!is_tensor(port)) return dense = v.is_c_contiguous();
    dense = is_dense_in(v, order_);
    const std::optional<Pitch> pitch = dense                    ? order_.geometry.dense_pitch()
                                       : rules_.pitched_tensors ? pitch_of(v, order_)
                                                                : std::nullopt;
    if (pitch) call_.pitches.of(port) = *pitch;
    return pitch.has_value();
  }

  void add_repair(const Rejection& first) {
    if (!repairable_) repairable_ = first;
  }

  // Returns the memory of an array, faster if its size in bytes is known because it is dense.
  template <class Port>
  std::optional<Memory> memory_of(const Port port, const View& v, const bool dense) const {
    if (!dense) return v.memory();
    const auto begin = reinterpret_cast<std::uintptr_t>(v.data);
    return Memory{begin, begin + (is_tensor(port) ? tensor_bytes_ : statistic_bytes_)};
  }

  Found check_overlap(const Output port, const View& v, const Memory& memory) const {
    Found found = first_of(call_.given, [&](const Input other) -> Found {
      const View& input = *call_.in[other];
      const bool overlaps =
          memory.meets(read_[other]) && !may_share(port, v, other, input) && v.overlaps(input);
      return overlaps ? Found(Rejection{Reason::overlap, port, other}) : std::nullopt;
    });
    if (found) return found;
    return first_of(call_.outputs, [&](const Output other) -> Found {
      const bool overlaps = memory.meets(written_[other]) && v.overlaps(*call_.out[other]);
      return overlaps ? Found(Rejection{Reason::overlap, port, other}) : std::nullopt;
    });
  }

  bool may_share(const Output port, const View& v, const Input other, const View& input) const {
    return rules_.in_place[port] == other && v.same_memory(input);
  }

  const CallRules& rules_;
  Call& call_;
  const View* statistic_ = nullptr;  // the first one
  ChannelAxes channel_axes_ = 0;
  MemoryOrder order_;
  std::size_t tensor_bytes_ = 0;
  std::size_t statistic_bytes_ = 0;
  PerPort<Input, Memory> read_;
  PerPort<Output, Memory> written_;
  Found repairable_;  // names what must be copied
};

// ---- Messages ----

struct Text {
  Reason reason;
  const char* of_tensors;
  const char* of_vectors = nullptr;  // parameters and statistics, unless it is the same text
};

constexpr const char* vector_types = "parameters and statistics other than float32";
constexpr const char* vector_shapes =
    "parameters and statistics whose length is not the number of channels";
constexpr const char* other_tensors = "tensors whose shape or dtype is not the input's";

constexpr std::array texts = {
    Text{Reason::epsilon, "an eps that is not positive and finite in float32"},
    Text{Reason::not_an_array, "tensors that are not strided tensors on the CPU"},
    Text{Reason::absent, "absent statistics"},
    Text{Reason::all_or_none, "one running statistic, or one parameter, without the other"},
    Text{Reason::alternatives, "dst together with a residual"},
    Text{Reason::activation, "dst with an activation whose derivative does not follow from it"},
    Text{Reason::rank, "inputs of this rank"},
    Text{Reason::type, "dtypes other than float32, bfloat16 and float16"},
    Text{Reason::size, "inputs of more than 2^56 bytes"},
    Text{Reason::statistics_type, "16-bit inputs without parameters and running statistics",
         vector_types},
    Text{Reason::statistics_shape, nullptr, vector_shapes},
    Text{Reason::like_type, other_tensors, vector_types},
    Text{Reason::like_shape, other_tensors, vector_shapes},
    Text{Reason::few_values, "fewer than two values per channel"},
    Text{Reason::memory, "tensors whose storage was made too small"},
    Text{Reason::layout, "strided inputs", "strided parameters and statistics"},
    Text{Reason::not_aligned, "unaligned tensors"},
    Text{Reason::overlap, "outputs that share memory with another argument"},
};

}  // namespace

std::optional<Rejection> check(const CallRules& rules, Call& call) {
  CallCheck steps(rules, call);
  if (const Found found = steps.check_presence()) return found;
  if (const Found found = steps.check_combination()) return found;
  if (call.reads_epsilon() && !is_valid_epsilon(call.attributes.epsilon)) {
    return Rejection{Reason::epsilon};
  }
  if (const Found found = steps.check_types_and_shapes()) return found;
  if (const Found found = steps.check_limits()) return found;
  if (const Found found = steps.check_memory_of_inputs()) return found;
  if (const Found found = steps.check_outputs()) return found;
  return steps.complete();
}

const char* unsupported(const Rejection& rejection, const bool only_f32) noexcept {
  const AnyPort port = rejection.port;
  const auto* const found = std::find_if(texts.begin(), texts.end(), [&](const Text& text) {
    return text.reason == rejection.reason;
  });
  if (found == texts.end()) return name_of(rejection.reason);
  const bool of_vectors = found->of_vectors != nullptr && port.kind != AnyPort::none &&
                          !port.visit([](const auto own) { return is_tensor(own); });
  if (!of_vectors) return found->of_tensors;
  if (found->of_vectors == vector_types && !only_f32) {
    return "parameters and statistics of this dtype";
  }
  return found->of_vectors;
}

std::optional<Rejection> check_shapes(const CallRules& rules, const OpConfig& config,
                                      const std::vector<std::optional<ArrayInfo>>& inputs) {
  Call call(config);
  PerPort<Input, std::vector<std::ptrdiff_t>> strides;
  std::size_t next = 0;
  call.inputs.for_each([&](const Input port) {
    const std::optional<ArrayInfo>& info = inputs.at(next++);
    if (!info) return;
    const auto& [type, shape] = *info;
    const auto rank = static_cast<std::ptrdiff_t>(shape.size());
    strides[port] = c_strides(rank, shape.data());
    call.in[port] = View{type, nullptr, rank, shape.data(), strides[port].data()};
  });
  return check(rules, call);
}

}  // namespace onedsl
