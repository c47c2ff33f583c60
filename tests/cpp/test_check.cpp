#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <vector>

#include "call.hpp"
#include "check.hpp"
#include "core/check.hpp"
#include "layouts.hpp"
#include "tests.hpp"

namespace onedsl::test {
namespace {

// The memory of the arrays, which is not accessed: each array has a slot, unless it shares one.
constexpr std::int64_t memory_begin = std::int64_t{1} << 40;
constexpr std::int64_t slot_bytes = std::int64_t{1} << 20;

// An array, whose view has pointers to its shape and strides.
struct Array {
  std::vector<std::ptrdiff_t> shape;
  std::vector<std::ptrdiff_t> strides;  // in elements, or in bytes as in NumPy
  View view;
};

// Return the index of each element of a tensor, in the order of `axes` in memory, slowest first.
template <class Axes>
std::vector<std::vector<std::ptrdiff_t>> indices(const View& v, const Axes& axes) {
  std::vector<std::vector<std::ptrdiff_t>> all;
  for (std::ptrdiff_t i = 0; i < v.size(); ++i) {
    auto& index = all.emplace_back(static_cast<std::size_t>(v.rank), 0);
    std::ptrdiff_t rest = i;
    for (auto axis = axes.end(); axis != axes.begin();) {
      const std::size_t own = *--axis;
      index[own] = rest % v.shape[own];
      rest /= v.shape[own];
    }
  }
  return all;
}

std::int64_t address_of(const View& v, const std::vector<std::ptrdiff_t>& index) {
  auto address = reinterpret_cast<std::int64_t>(v.data);
  const auto unit = v.item_stride == 1 ? static_cast<std::int64_t>(size_of(v.type)) : 1;
  for (std::size_t axis = 0; axis < index.size(); ++axis) {
    address += index[axis] * v.strides[axis] * unit;
  }
  return address;
}

// Return the address of each element, in C order.
std::vector<std::int64_t> addresses_of(const View& v) {
  std::vector<std::size_t> axes(static_cast<std::size_t>(v.rank));
  std::iota(axes.begin(), axes.end(), std::size_t{0});
  std::vector<std::int64_t> addresses;
  for (const auto& index : indices(v, axes)) addresses.push_back(address_of(v, index));
  return addresses;
}

// Return the addresses of all bytes, sorted. Those of two elements are there twice.
std::vector<std::int64_t> bytes_of(const View& v) {
  std::vector<std::int64_t> bytes;
  for (const std::int64_t address : addresses_of(v)) {
    for (std::size_t i = 0; i < size_of(v.type); ++i) {
      bytes.push_back(address + static_cast<std::int64_t>(i));
    }
  }
  std::sort(bytes.begin(), bytes.end());
  return bytes;
}

bool share_a_byte(const View& a, const View& b) {
  const std::vector<std::int64_t> own = bytes_of(a);
  const std::vector<std::int64_t> other = bytes_of(b);
  std::vector<std::int64_t> common;
  std::set_intersection(own.begin(), own.end(), other.begin(), other.end(),
                        std::back_inserter(common));
  return !common.empty();
}

bool has_distinct_bytes(const View& v) {
  const std::vector<std::int64_t> bytes = bytes_of(v);
  return std::adjacent_find(bytes.begin(), bytes.end()) == bytes.end();
}

bool is_aligned(const View& v) {
  return v.size() == 0 ||
         reinterpret_cast<std::int64_t>(v.data) % static_cast<std::int64_t>(size_of(v.type)) == 0;
}

bool is_readable(const View& v) {
  if (v.bytes_from_data == unknown_bytes || v.size() == 0) return true;
  const auto begin = reinterpret_cast<std::int64_t>(v.data);
  return bytes_of(v).back() < begin + static_cast<std::int64_t>(v.bytes_from_data);
}

bool same_shape(const View& a, const View& b) {
  return std::equal(a.shape, a.shape + a.rank, b.shape, b.shape + b.rank);
}

// A random call, most of whose arrays are as they must be.
class RandomCall {
 public:
  explicit RandomCall(Random& random)
      : random_(random), call(config(random)), rules(CallRules::of(signature())) {
    numpy_ = random.chance(2);
    if (random.chance(8)) rules.min_values = 2;
    if (random.chance(8)) rules.ignored = random.choice(std::array{Input::gamma, Input::beta});
    const auto rank = random.between(2, 4);
    for (std::int64_t axis = 0; axis < rank; ++axis) shape_.push_back(random.between(1, 3));
    if (random.chance(20)) shape_[0] = 0;
    if (random.chance(2)) {
      rules.channel_axis = random.between(-rank, rank - 1);
      vector_ = {shape_[static_cast<std::size_t>(*axis_at(*rules.channel_axis, rank))]};
    } else {
      vector_ = shape_;
      for (std::ptrdiff_t& size : vector_) {
        if (random.chance(2)) size = 1;
      }
    }
    // A dense copy need not have several channel axes together, so callers with them have strides.
    rules.pitched_tensors = !rules.channel_axis || random.chance(2);
    rules.outputs_need_alternative = random.chance(2);
    const TypePair types = random.choice(supported_types);
    layout_.shape = shape_;
    strides_ = tensor_strides();
    // In most calls one of the alternatives.
    const InputSet replaced = random.chance(20)  ? InputSet()
                              : random.chance(2) ? InputSet(Input::dst)
                                                 : InputSet(Input::residual);
    (signature().inputs - (replaced & rules.alternatives)).for_each([&](const Input port) {
      const bool omitted = rules.optional.has(port) && omits_optional_;
      if (omitted || random.chance(60)) return;
      add(in_[port], is_tensor(port), types);
      call.in[port] = in_[port].view;
    });
    if (random.chance(6)) call.outputs = signature().required_outputs;
    call.outputs_described = random.chance(2);
    call.outputs_match = !random.chance(50);
    if (!call.outputs_described) return;
    call.outputs.for_each([&](const Output port) {
      Array& array = out_[port];
      add(array, is_tensor(port), types);
      array.view.writeable = !random.chance(60);
      const Input in_place = signature().in_place_input;
      if (port == signature().result && call.in[in_place] && random.chance(3)) {
        const View& input = in_[in_place].view;
        array.view.data = input.data;
        array.shape = in_[in_place].shape;
        array.strides = in_[in_place].strides;
        if (random.chance(4)) {  // other elements of the same memory
          array.strides = random_strides(random, array.shape, false);
          for (std::ptrdiff_t& stride : array.strides) stride *= array.view.item_stride;
        }
        array.view.shape = array.shape.data();
        array.view.strides = array.strides.data();
        array.view.rank = input.rank;
      }
      if (random.chance(20)) {  // not yet allocated
        array.view.data = nullptr;
        array.view.bytes_from_data = unknown_bytes;
      }
      call.out[port] = array.view;
    });
  }

  const Signature& signature() const { return signature_of(call.operation); }

  // Return the channel axes of src.
  ChannelAxes channel_axes() const {
    const View& src = call.src();
    if (rules.channel_axis) return ChannelAxes{1} << *axis_at(*rules.channel_axis, src.rank);
    ChannelAxes axes = 0;
    for (const Input port : {Input::mean, Input::variance, Input::gamma, Input::beta}) {
      if (!call.in[port]) continue;
      for (std::ptrdiff_t axis = 0; axis < src.rank; ++axis) {
        if (call.in[port]->shape[axis] != 1) axes |= ChannelAxes{1} << axis;
      }
    }
    return axes;
  }

  // Replaces arrays by dense copies, of tensors in the memory order of src.
  void copy(const Rejection& rejection) {
    odd_ = 0;
    const auto replace = [&](const auto port, Array& array, std::optional<View>& used) {
      View& v = array.view;
      std::vector<std::ptrdiff_t> strides =
          is_tensor(port) ? rejection.strides : c_strides(v.rank, v.shape);
      for (std::ptrdiff_t& stride : strides) stride *= v.item_stride;
      array.strides = strides;
      v.strides = array.strides.data();
      v.data = new_slot();
      v.bytes_from_data = unknown_bytes;
      used = v;
    };
    rejection.to_copy.for_each([&](const Input port) { replace(port, in_[port], call.in[port]); });
    rejection.to_copy_back.for_each(
        [&](const Output port) { replace(port, out_[port], call.out[port]); });
  }

 private:
  static OpConfig config(Random& random) {
    OpConfig config;
    config.operation = random.choice(operations);
    config.attributes.epsilon = random.chance(50) ? 0 : 1e-3;
    const auto last = static_cast<std::int64_t>(activations::all.size()) - 1;
    const auto activation = static_cast<Activation>(random.between(1, last));
    config.attributes.set_activation(activation, std::nullopt);
    return config;
  }

  char* new_slot() {
    const std::int64_t begin = memory_begin + slots_++ * slot_bytes + slot_bytes / 2;
    return reinterpret_cast<char*>(begin + 2 * random_.between(0, 1) * odd_);
  }

  std::vector<std::ptrdiff_t> tensor_strides() {
    if (random_.chance(3)) return random_strides(random_, shape_, true);
    std::vector<std::size_t> order(shape_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (random_.chance(2)) std::reverse(order.begin() + 1, order.end());
    set_strides(layout_, order);
    return layout_.strides;
  }

  void add(Array& array, const bool tensor, const TypePair types) {
    array.shape = tensor ? shape_ : vector_;
    if (random_.chance(80)) array.shape.back() += 1;
    if (random_.chance(150)) array.shape.push_back(1);
    const auto rank = static_cast<std::ptrdiff_t>(array.shape.size());
    array.strides = c_strides(rank, array.shape.data());
    if (tensor && array.shape == shape_) array.strides = strides_;
    if (random_.chance(10)) array.strides = random_strides(random_, array.shape, random_.chance(2));
    View& v = array.view;
    v.type = tensor ? types.first : types.second;
    if (random_.chance(80)) v.type = random_.choice(types_with_other);
    v.item_stride = numpy_ ? static_cast<std::ptrdiff_t>(size_of(v.type)) : 1;
    for (std::ptrdiff_t& stride : array.strides) {
      stride *= v.item_stride;
      if (numpy_ && random_.chance(100)) ++stride;
    }
    odd_ = random_.chance(20) ? 1 : 0;
    v.data = new_slot();
    if (random_.chance(30) && slots_ > 1) {  // near the array before
      v.data -= slot_bytes - random_.between(-64, 64) / 4 * 4;
    }
    v.rank = rank;
    v.shape = array.shape.data();
    v.strides = array.strides.data();
    if (random_.chance(4) && v.size() > 0) {
      const std::int64_t end = bytes_of(v).back() + 1 - random_.between(0, 5) / 5;
      const std::int64_t begin = reinterpret_cast<std::int64_t>(v.data);
      v.bytes_from_data = static_cast<std::size_t>(std::max(end - begin, std::int64_t{0}));
    }
  }

  static constexpr std::array types_with_other = {DataType::f32, DataType::bf16, DataType::f16,
                                                  DataType::other};

  Random& random_;
  bool numpy_ = false;
  bool omits_optional_ = random_.chance(4);
  std::int64_t odd_ = 0;
  std::int64_t slots_ = 0;
  Layout layout_;
  std::vector<std::ptrdiff_t> shape_, vector_, strides_;
  PerPort<Input, Array> in_;
  PerPort<Output, Array> out_;

 public:
  Call call;
  CallRules rules;
};

// What the kernels rely on, from the shapes and strides of the arrays only.
void check_accepted(const RandomCall& test) {
  const Call& call = test.call;
  const View& src = call.src();
  const Signature& signature = test.signature();
  const View* statistic = nullptr;
  // An array of a call: its type, shape and memory.
  const auto check_array = [&](const auto port, const View& v) {
    check(is_tensor(port)
              ? v.type == src.type && same_shape(v, src)
              : statistic == nullptr || (v.type == statistic->type && same_shape(v, *statistic)),
          name_of(port), " has another type or shape");
    if (!is_tensor(port) && statistic == nullptr) statistic = &v;
    check(is_aligned(v) && is_readable(v), name_of(port), " is outside of its memory");
    if (!is_tensor(port)) {
      const std::vector<std::int64_t> addresses = addresses_of(v);
      for (std::size_t i = 1; i < addresses.size(); ++i) {
        check(addresses[i] - addresses[i - 1] == static_cast<std::int64_t>(size_of(v.type)),
              name_of(port), " is not dense");
      }
    }
  };
  call.given.for_each([&](const Input port) { check_array(port, *call.in[port]); });
  check((signature.inputs - signature.optional_inputs - call.given).empty(), "an input is absent");
  check((call.given & signature.alternatives).count() < 2, "two alternatives");
  const ChannelAxes axes = test.channel_axes();
  // The elements in memory order: their statistics, and their addresses.
  const MemoryOrder order = *memory_order(src, axes);
  const Geometry& g = call.geometry;
  const auto all = indices(src, order);
  check(g.elements() == static_cast<std::int64_t>(all.size()), "the geometry has ", g.elements(),
        " elements");
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::int64_t channel = 0;
    for (std::size_t axis = 0; axis < all[i].size(); ++axis) {
      if ((axes >> axis & 1U) != 0) channel = channel * src.shape[axis] + all[i][axis];
    }
    check(static_cast<std::int64_t>(i) / g.inner % g.channels == channel, "element ", i,
          " has another channel");
  }
  const auto check_pitch = [&](const auto port, const View& v) {
    const Pitch& pitch = call.pitches.of(port);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto element = static_cast<std::int64_t>(i);
      const std::int64_t offset = element / (g.channels * g.inner) * pitch.position +
                                  element / g.inner % g.channels * pitch.channel +
                                  element % g.inner;
      const std::int64_t address = reinterpret_cast<std::int64_t>(v.data) +
                                   offset * static_cast<std::int64_t>(size_of(v.type));
      check(address == address_of(v, all[i]), name_of(port), ": element ", i, " is elsewhere");
    }
  };
  call.given.for_each([&](const Input port) {
    if (is_tensor(port)) check_pitch(port, *call.in[port]);
  });
  if (!call.outputs_described) return;
  call.outputs.for_each([&](const Output port) {
    const View& v = *call.out[port];
    check_array(port, v);
    check(v.writeable, name_of(port), " is read-only");
    if (is_tensor(port)) check_pitch(port, v);
    if (v.data == nullptr) return;
    check(has_distinct_bytes(v), "two elements of ", name_of(port), " share memory");
    call.given.for_each([&](const Input other) {
      const bool in_place = port == signature.result && other == signature.in_place_input &&
                            addresses_of(v) == addresses_of(*call.in[other]);
      check(in_place || !share_a_byte(v, *call.in[other]), name_of(port), " overlaps ",
            name_of(other));
    });
    call.outputs.for_each([&](const Output other) {
      check(other == port || !share_a_byte(v, *call.out[other]), name_of(port), " overlaps ",
            name_of(other));
    });
  });
}

// Return whether a call has what it was rejected for.
bool is_justified(const RandomCall& test, const Rejection& rejection) {
  const Call& call = test.call;
  const auto view_at = [&](const AnyPort port) -> const View* {
    if (port.kind == AnyPort::none) return nullptr;
    const std::optional<View>& v = port.kind == AnyPort::input
                                       ? call.in[static_cast<Input>(port.index)]
                                       : call.out[static_cast<Output>(port.index)];
    return v ? &*v : nullptr;
  };
  const View* const v = view_at(rejection.port);
  const bool of_tensor = rejection.port.kind != AnyPort::none &&
                         rejection.port.visit([](const auto port) { return is_tensor(port); });
  const View* like = of_tensor ? &*call.in[Input::src] : nullptr;
  const auto take_first = [&](const Input port) {
    if (!is_tensor(port) && like == nullptr && call.in[port]) like = &*call.in[port];
  };
  if (!of_tensor) call.inputs.for_each(take_first);
  switch (rejection.reason) {
    case Reason::epsilon:
      return call.attributes.epsilon == 0;
    case Reason::absent:
      return v == nullptr;
    case Reason::all_or_none:
      return v == nullptr && !(call.given & test.rules.all_or_none).empty() && !call.in[Input::dst];
    case Reason::alternatives:
      return call.in[Input::dst] && call.in[Input::residual];
    case Reason::one_of:
      return test.rules.outputs_need_alternative && call.outputs.has(Output::diff_residual) &&
             !call.in[Input::dst] && !call.in[Input::residual];
    case Reason::activation:
      return call.in[Input::dst] && call.attributes.activation != Activation::relu &&
             !(call.attributes.activation == Activation::leaky_relu &&
               call.attributes.parameter > 0);
    case Reason::type:
      return v->type == DataType::other;
    case Reason::statistics_type:
      return std::find(supported_types.begin(), supported_types.end(),
                       TypePair{call.src().type, v->type}) == supported_types.end();
    case Reason::statistics_shape: {
      if (v == nullptr) return !test.rules.channel_axis;
      const View& src = call.src();
      if (test.rules.channel_axis) {
        const std::optional<std::ptrdiff_t> axis = axis_at(*test.rules.channel_axis, src.rank);
        return v->rank != 1 || v->shape[0] != src.shape[*axis];
      }
      bool fits = v->rank == src.rank;
      for (std::ptrdiff_t axis = 0; fits && axis < src.rank; ++axis) {
        fits = v->shape[axis] == 1 || v->shape[axis] == src.shape[axis];
      }
      return !fits;
    }
    case Reason::like_type:
      return v->type != like->type;
    case Reason::like_shape:
      return !same_shape(*v, *like);
    case Reason::ignored:
      return v != nullptr && !(call.outputs == test.signature().outputs);
    case Reason::few_values:
      return call.src().size() < 2 * 81;
    case Reason::memory:
      return !is_readable(*v);
    case Reason::outputs:
      return !call.outputs_match;
    case Reason::not_aligned:
      return !is_aligned(*v);
    case Reason::read_only:
      return !v->writeable;
    case Reason::overlap:
      return rejection.port.kind == rejection.other.kind &&
                     rejection.port.index == rejection.other.index
                 ? !has_separate_elements(*v)
                 : v->memory()->meets(*view_at(rejection.other)->memory());  // hard to decide
    case Reason::layout: {
      if (of_tensor) {
        const MemoryOrder order = *memory_order(call.src(), test.channel_axes());
        return test.rules.pitched_tensors ? !pitch_of(*v, order) : !is_dense_in(*v, order);
      }
      const std::vector<std::ptrdiff_t> dense = c_strides(v->rank, v->shape);
      View copy = *v;
      copy.item_stride = 1;
      copy.strides = dense.data();
      const auto offsets = [](const View& own) {
        std::vector<std::int64_t> all = addresses_of(own);
        for (std::int64_t& each : all) each -= reinterpret_cast<std::int64_t>(own.data);
        return all;
      };
      return offsets(copy) != offsets(*v);
    }
    default:
      return false;
  }
}

}  // namespace

// Accepted calls are safe for the kernels, rejected ones have the fault that is named, and copies
// repair those of which the check says so.
void test_check() {
  Random random(11);
  std::map<Reason, int> rejected;
  const auto check_justified = [](const int i, const RandomCall& test, const Rejection& rejection) {
    check(is_justified(test, rejection), "call ", i, ": ", name_of(rejection.reason),
          " without this fault");
  };
  int accepted = 0;
  int repaired = 0;
  for (int i = 0; i < 40'000; ++i) {
    RandomCall test(random);
    std::optional<Rejection> rejection = onedsl::check(test.rules, test.call);
    if (rejection && !(rejection->to_copy.empty() && rejection->to_copy_back.empty())) {
      check_justified(i, test, *rejection);
      test.copy(*rejection);
      rejection = onedsl::check(test.rules, test.call);
      check(!rejection, "call ", i, " is rejected after copies");
      ++repaired;
    }
    if (rejection) {
      check_justified(i, test, *rejection);
      ++rejected[rejection->reason];
      continue;
    }
    ++accepted;
    try {
      check_accepted(test);
    } catch (const std::exception& error) {
      check(false, "call ", i, ": ", error.what());
    }
  }
  check(accepted > 8000 && repaired > 1000, accepted, " accepted, ", repaired, " repaired");
  for (const Reason reason :
       {Reason::epsilon, Reason::absent, Reason::all_or_none, Reason::alternatives, Reason::one_of,
        Reason::activation, Reason::type, Reason::statistics_type, Reason::statistics_shape,
        Reason::like_type, Reason::like_shape, Reason::ignored, Reason::few_values, Reason::memory,
        Reason::layout, Reason::outputs, Reason::not_aligned, Reason::read_only, Reason::overlap}) {
    check(rejected[reason] > 20, name_of(reason), ": ", rejected[reason], " calls");
  }
}

}  // namespace onedsl::test
