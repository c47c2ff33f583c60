#include "handlers.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <new>
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

template <class T>
T scalar(const abi::Attrs& attributes, const char* const name, const abi::DataType type,
         const char* const must_be) {
  for (std::int64_t i = 0; i < attributes.count; ++i) {
    const abi::Text& own = *attributes.names[i];
    if (std::string_view(own.begin, own.length) != name) continue;
    if (attributes.types[i] != abi::scalar) break;
    const auto& found = *static_cast<const abi::Scalar*>(attributes.items[i]);
    if (found.type == type) return *static_cast<const T*>(found.value);
  }
  reject(name, must_be);
}

std::int64_t integer(const abi::Attrs& attributes, const char* const name) {
  return scalar<std::int64_t>(attributes, name, abi::s64, "must be an i64");
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

OpConfig config_of(const abi::Attrs& attributes, const Operation operation) {
  OpConfig config;
  config.operation = operation;
  config.attributes.epsilon = scalar<double>(attributes, "epsilon", abi::f64, "must be an f64");
  if (integer(attributes, "frozen") != 0) {
    if (operation != Operation::training_backward) reject("frozen", "must be 0");
    config.statistics_kind = StatisticsKind::frozen;
  }
  return config;
}

// A call of XLA. Under vmap all arrays have the same leading batch axes.
class Batch {
 public:
  Batch(const abi::CallFrame& call, const Operation operation)
      : item_(config_of(call.attributes, operation)) {
    const Signature& signature = signature_of(operation);
    const auto given = static_cast<std::size_t>(call.arguments.count);
    const bool all = given == signature.inputs.count();
    // onedsl.jax passes all optional inputs or none.
    if (!all && given != signature.inputs.count() - signature.optional_inputs.count()) {
      throw InvalidCall("there must be one array for each input of the op");
    }
    if (static_cast<std::size_t>(call.results.count) != signature.outputs.count()) {
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
    item_.inputs.for_each([&](const Input port) {
      if (!all && signature.optional_inputs.has(port)) return;
      item_.in[port] = view_of(port, buffer(call.arguments, next++));
    });
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

const std::array<NamedHandler, 2> handlers = {
    named<Operation::training_backward>("onedsl_batch_norm_training_backward"),
    named<Operation::forward_training>("onedsl_batch_norm_forward_training"),
};

}  // namespace onedsl::xla
