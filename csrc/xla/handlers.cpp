#include "handlers.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "../core/check.hpp"
#include "../native/run_call.hpp"
#include "pool.hpp"

// Programs may come from untrusted files, so everything is checked before use.
namespace onedsl::xla {
namespace {

// The call is not one that onedsl.jax makes.
using InvalidCall = std::invalid_argument;

[[noreturn]] void reject(const char* const argument, const char* const why) {
  throw InvalidCall(std::string(argument) + " " + why);
}

// ---- XLA's structs ----

// Returns whether XLA's structs have all members that a handler reads.
bool is_known(const abi::CallFrame& call) noexcept {
  return call.size >= sizeof(abi::CallFrame) && call.arguments.size == sizeof(abi::Buffers) &&
         call.results.size == sizeof(abi::Buffers) && call.attributes.size == sizeof(abi::Attrs);
}

std::string_view view(const abi::Text& text) { return {text.begin, text.length}; }

// Returns the value of an attribute, null if there is none of this name.
template <class T>
const T* find(const abi::Attrs& attributes, const char* const name, const abi::AttributeType type,
              const char* const must_be) {
  for (std::int64_t i = 0; i < attributes.count; ++i) {
    if (view(*attributes.names[i]) != name) continue;
    if (attributes.types[i] != type) reject(name, must_be);
    return static_cast<const T*>(attributes.items[i]);
  }
  return nullptr;
}

template <class T>
std::optional<T> optional_scalar(const abi::Attrs& attributes, const char* const name,
                                 const abi::DataType type, const char* const must_be) {
  const auto* const found = find<abi::Scalar>(attributes, name, abi::scalar, must_be);
  if (found == nullptr) return std::nullopt;
  if (found->type != type) reject(name, must_be);
  return *static_cast<const T*>(found->value);
}

std::optional<std::int64_t> optional_integer(const abi::Attrs& attributes, const char* const name) {
  return optional_scalar<std::int64_t>(attributes, name, abi::s64, "must be an i64");
}

std::int64_t integer(const abi::Attrs& attributes, const char* const name) {
  const std::optional<std::int64_t> found = optional_integer(attributes, name);
  if (!found) reject(name, "must be an i64");
  return *found;
}

std::optional<double> optional_number(const abi::Attrs& attributes, const char* const name) {
  return optional_scalar<double>(attributes, name, abi::f64, "must be an f64");
}

const abi::Buffer& buffer(const abi::Buffers& buffers, const std::int64_t index) {
  const abi::Buffer& found = *buffers.items[index];
  if (found.size < sizeof(abi::Buffer)) throw InvalidCall("XLA's buffers have an unknown version");
  return found;
}

DataType type_of(const abi::Buffer& buffer) {
  switch (buffer.type) {
    case abi::f32:
      return DataType::f32;
    case abi::bf16:
      return DataType::bf16;
    case abi::f16:
      return DataType::f16;
    default:
      return DataType::other;
  }
}

// ---- Calls ----

[[noreturn]] void reject(const Rejection& rejection) {
  const AnyPort port = rejection.port;
  const std::string name =
      port.kind == AnyPort::none ? "none" : port.visit([](const auto own) { return name_of(own); });
  throw InvalidCall(std::string("onedsl does not support ") + unsupported(rejection, false) + " (" +
                    name + ")");
}

bool has_activation(const Operation operation) noexcept {
  return operation == Operation::act_forward_training ||
         operation == Operation::act_training_backward;
}

OpConfig config_of(const abi::Attrs& attributes, const Operation operation) {
  OpConfig config;
  config.operation = operation;
  const std::optional<double> epsilon = optional_number(attributes, "epsilon");
  if (!epsilon) reject("epsilon", "must be an f64");
  config.attributes.epsilon = *epsilon;
  if (integer(attributes, "frozen") != 0) {
    if (operation != Operation::training_backward) reject("frozen", "must be 0");
    config.statistics_kind = StatisticsKind::frozen;
  }
  if (has_activation(operation)) {
    constexpr const char* must_be = "must be the name of an activation";
    const auto* const id = find<abi::Text>(attributes, "activation", abi::string, must_be);
    const auto activation = id == nullptr ? std::nullopt : activation_of(view(*id));
    if (!activation || activation == Activation::none) reject("activation", must_be);
    const std::optional<double> parameter = optional_number(attributes, "parameter");
    if (!is_valid_parameter(*activation, parameter)) {
      reject("parameter", "must be in the limits of the activation");
    }
    config.attributes.set_activation(*activation, parameter);
  }
  return config;
}

// Returns the inputs of a call. Optional ones have an attribute that is 1 if they are passed.
// Programs from before an input existed do not have its attribute.
InputSet inputs_of(const abi::Attrs& attributes, const Signature& signature) {
  InputSet passed = signature.inputs - signature.optional_inputs;
  signature.optional_inputs.for_each([&](const Input port) {
    if (optional_integer(attributes, name_of(port)).value_or(0) != 0) passed.add(port);
  });
  return passed;
}

// A call of XLA. Under vmap all arrays have the same leading batch axes.
class Batch {
 public:
  Batch(const abi::CallFrame& call, const Operation operation)
      : item_(config_of(call.attributes, operation)) {
    const Signature& signature = signature_of(operation);
    const InputSet passed = inputs_of(call.attributes, signature);
    if (static_cast<std::size_t>(call.arguments.count) != passed.count()) {
      throw InvalidCall("there must be one array for each input of the op");
    }
    const auto results = static_cast<std::size_t>(call.results.count);
    if (results == signature.required_outputs.count()) item_.outputs = signature.required_outputs;
    if (results != item_.outputs.count()) {
      throw InvalidCall("there must be one array for each output of the op");
    }
    CallRules rules = CallRules::of(signature);
    const abi::Buffer& src = buffer(call.arguments, 0);
    rank_ = integer(call.attributes, "rank");
    if (rank_ < 1 || rank_ > src.rank || rank_ > max_rank) {
      reject("rank", "must be between 1 and the rank of src");
    }
    rules.channel_axis = integer(call.attributes, "channel_axis");
    if (*rules.channel_axis < 0 || *rules.channel_axis >= rank_) {
      reject("channel_axis", "must be an axis of src");
    }
    sizes_ = {src.sizes, src.sizes + (src.rank - rank_)};
    strides_ = c_strides(rank_, src.sizes + (src.rank - rank_));
    std::int64_t next = 0;
    passed.for_each(
        [&](const Input port) { item_.in[port] = view_of(port, buffer(call.arguments, next++)); });
    next = 0;
    item_.outputs.for_each(
        [&](const Output port) { item_.out[port] = view_of(port, buffer(call.results, next++)); });
    item_.outputs_described = true;
    if (const auto rejection = check(rules, item_)) reject(*rejection);
  }

  void run(const Threads& threads) const {
    std::int64_t items = 1;
    for (const std::int64_t size : sizes_) {
      if (__builtin_mul_overflow(items, size, &items)) reject("the batch", "has too many items");
    }
    if (item_.geometry.channels == 0) return;  // nothing to write, in perhaps very many items
    for (Pointers memory = pointers_of(item_); items > 0; --items) {
      native::run_call(item_, memory, threads);
      item_.given.for_each([&](const Input port) {
        memory.in[port] = static_cast<const char*>(memory.in[port]) + item_.in[port]->bytes();
      });
      item_.outputs.for_each([&](const Output port) {
        memory.out[port] = static_cast<char*>(memory.out[port]) + item_.out[port]->bytes();
      });
    }
  }

 private:
  // Returns a view of the first item of the batch.
  template <class Port>
  View view_of(const Port port, const abi::Buffer& array) const {
    const auto batch_rank = static_cast<std::int64_t>(sizes_.size());
    const std::int64_t rank = is_tensor(port) ? rank_ : 1;
    if (array.rank != batch_rank + rank || !std::equal(sizes_.begin(), sizes_.end(), array.sizes)) {
      reject(Rejection{Reason::like_shape, port});
    }
    View v;
    v.type = type_of(array);
    v.data = static_cast<char*>(array.data);
    v.rank = rank;
    v.shape = array.sizes + batch_rank;
    v.strides = is_tensor(port) ? strides_.data() : &vector_stride;
    v.writeable = true;
    return v;
  }

  static constexpr std::ptrdiff_t vector_stride = 1;

  std::int64_t rank_ = 0;                // of an item
  std::vector<std::int64_t> sizes_;      // of the batch axes
  std::vector<std::ptrdiff_t> strides_;  // of the tensors of an item
  Call item_;                            // the first one
};

abi::Error* error(const abi::Api& api, const abi::Code code, const Operation operation,
                  const char* const why) noexcept {
  std::array<char, 256> message;
  std::snprintf(message.data(), message.size(), "onedsl's handler of %s: %s",
                signature_of(operation).name, why);
  abi::ErrorArguments arguments = {sizeof arguments, nullptr, message.data(), code};
  return api.create_error(&arguments);
}

// The handler that XLA calls. No exception may propagate into XLA.
template <Operation operation>
abi::Error* handle(abi::CallFrame* const call) noexcept {
  if (call->extensions != nullptr && call->extensions->type == abi::Extension::metadata) {
    // Reports XLA's own minor version, because all of them are compatible here, and one that XLA
    // does not accept would make JAX unusable. JAX 0.6 does not pass it.
    const int minor = call->api == nullptr ? abi::Version::oldest_minor : call->api->version.minor;
    abi::Version& version =
        reinterpret_cast<abi::MetadataExtension*>(call->extensions)->metadata->version;
    version = {sizeof version, nullptr, abi::Version::known_major, minor};
    return nullptr;
  }
  const abi::Api& api = *call->api;
  if (!is_known(*call)) {
    return error(api, abi::internal, operation, "XLA's interface has changed; update onedsl");
  }
  try {
    Batch(*call, operation).run(Pool(api, call->context));
    return nullptr;
  } catch (const InvalidCall& invalid) {
    return error(api, abi::invalid_argument, operation, invalid.what());
  } catch (const std::bad_alloc&) {
    return error(api, abi::resource_exhausted, operation, "no memory");
  } catch (const std::exception& other) {
    return error(api, abi::internal, operation, other.what());
  }
}

template <Operation operation>
constexpr NamedHandler named(const char* const name) noexcept {
  return {name, operation, &handle<operation>};
}

}  // namespace

const std::array<NamedHandler, 4> handlers = {
    named<Operation::training_backward>("onedsl_batch_norm_training_backward"),
    named<Operation::forward_training>("onedsl_batch_norm_forward_training"),
    named<Operation::act_training_backward>("onedsl_batch_norm_act_training_backward"),
    named<Operation::act_forward_training>("onedsl_batch_norm_act_forward_training"),
};

}  // namespace onedsl::xla
