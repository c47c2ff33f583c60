#include "handlers.hpp"

#include <algorithm>
#include <array>
#include <atomic>
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

#include "../core/threads.hpp"
#include "../native/execute.hpp"

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
bool is_known(const abi::Call& call) noexcept {
  return call.size >= sizeof(abi::Call) && call.arguments.size == sizeof(abi::Buffers) &&
         call.results.size == sizeof(abi::Buffers) &&
         call.attributes.size == sizeof(abi::Attributes);
}

template <class T>
T scalar(const abi::Attributes& attributes, const char* const name, const abi::DataType type,
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

std::int64_t integer(const abi::Attributes& attributes, const char* const name) {
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
      throw InvalidCall("arrays must be f32, bf16 or f16");
  }
}

// ---- Calls ----

// The arrays of one kind, tensors or statistics: their type, their shape with the batch axes, and
// the size of one item of the batch.
struct Kind {
  DataType type = DataType::f32;
  std::vector<std::int64_t> shape;
  std::int64_t item_bytes = 0;
};

// A call of XLA, validated for memory safety. Under vmap all arrays have the same leading batch
// axes.
class Call {
 public:
  Call(const abi::Call& call, const Operation operation) {
    const Signature& signature = signature_of(operation);
    const auto given = static_cast<std::size_t>(call.arguments.count);
    const bool all = given == signature.inputs.count();
    // onedsl.jax passes all optional inputs or none.
    if (!all && given != signature.inputs.count() - signature.optional.count()) {
      throw InvalidCall("there must be one array for each input of the op");
    }
    if (static_cast<std::size_t>(call.results.count) != signature.outputs.count()) {
      throw InvalidCall("there must be one array for each output of the op");
    }
    PerPort<Input, const abi::Buffer*> inputs;
    std::int64_t next = 0;
    signature.inputs.for_each([&](const Input port) {
      if (all || !signature.optional.has(port)) inputs[port] = &buffer(call.arguments, next++);
    });
    problem_.operation = operation;
    problem_.inputs = present(inputs);
    problem_.outputs = signature.outputs;
    set_kinds(call.attributes, *inputs[Input::src], *inputs[Input::mean]);
    problem_.inputs.for_each(
        [&](const Input port) { ports_.in[port] = memory(port, *inputs[port]); });
    next = 0;
    problem_.outputs.for_each(
        [&](const Output port) { ports_.out[port] = memory(port, buffer(call.results, next++)); });
    double& epsilon = problem_.attributes.epsilon;
    epsilon = scalar<double>(call.attributes, "epsilon", abi::f64, "must be an f64");
    if (!is_valid_epsilon(epsilon)) reject("epsilon", "must be positive and finite");
    if (integer(call.attributes, "frozen") != 0) problem_.statistics = Statistics::frozen;
  }

  void run() {
    for (; items_ > 0; --items_) {
      native::execute(problem_, max_threads(), ports_);
      problem_.inputs.for_each([&](const Input port) {
        ports_.in[port] = static_cast<const char*>(ports_.in[port]) + kind_of(port).item_bytes;
      });
      problem_.outputs.for_each([&](const Output port) {
        ports_.out[port] = static_cast<char*>(ports_.out[port]) + kind_of(port).item_bytes;
      });
    }
  }

 private:
  void set_kinds(const abi::Attributes& attributes, const abi::Buffer& src,
                 const abi::Buffer& mean) {
    tensors_.type = problem_.data = type_of(src);
    statistics_.type = problem_.statistics_type = type_of(mean);
    const TypePair types{tensors_.type, statistics_.type};
    if (std::find(supported_types.begin(), supported_types.end(), types) == supported_types.end()) {
      reject("mean", "must be f32, or bf16 where src is bf16");
    }
    const std::int64_t rank = integer(attributes, "rank");
    if (rank < 1 || rank > src.rank || rank > max_rank) {
      reject("rank", "must be between 1 and the rank of src");
    }
    const std::int64_t channel_axis = integer(attributes, "channel_axis");
    if (channel_axis < 0 || channel_axis >= rank) reject("channel_axis", "must be an axis of src");

    const std::int64_t* const shape = src.sizes + (src.rank - rank);  // of an item
    const std::vector<std::ptrdiff_t> strides = c_strides(rank, shape);
    const std::optional<Geometry> geometry =
        dense_geometry(View{tensors_.type, nullptr, rank, shape, strides.data()},
                       ChannelAxes{1} << static_cast<unsigned>(channel_axis));
    if (!geometry) reject("src", "has too many elements");
    problem_.geometry = *geometry;
    items_ = 1;
    for (const std::int64_t* size = src.sizes; size != shape; ++size) {
      if (__builtin_mul_overflow(items_, *size, &items_)) reject("the batch", "has too many items");
    }
    tensors_.shape = {src.sizes, src.sizes + src.rank};
    tensors_.item_bytes = geometry->elements() * static_cast<std::int64_t>(size_of(tensors_.type));
    statistics_.shape = {tensors_.shape.begin(), tensors_.shape.end() - rank};
    statistics_.shape.push_back(geometry->channels);
    statistics_.item_bytes =
        geometry->channels * static_cast<std::int64_t>(size_of(statistics_.type));
  }

  template <class Port>
  const Kind& kind_of(const Port port) const {
    return is_tensor(port) ? tensors_ : statistics_;
  }

  template <class Port>
  void* memory(const Port port, const abi::Buffer& array) const {
    const Kind& kind = kind_of(port);
    if (type_of(array) != kind.type) {
      reject(name_of(port),
             is_tensor(port) ? "must have the type of src" : "must have the type of mean");
    }
    if (!std::equal(array.sizes, array.sizes + array.rank, kind.shape.begin(), kind.shape.end())) {
      reject(name_of(port),
             is_tensor(port) ? "must have the shape of src" : "must have one value per channel");
    }
    return array.data;
  }

  Problem problem_;
  Kind tensors_, statistics_;
  std::int64_t items_ = 0;  // of the batch that have not run
  Ports ports_;             // of the next item
};

// Counts the calls in progress. XLA makes the calls of several devices at the same time, each on a
// thread of its own. Without a limit each of them would start a team of all OpenMP threads.
class CallInProgress {
 public:
  CallInProgress() noexcept : limit_(std::max(1, max_threads() / ++count)) {}
  ~CallInProgress() { --count; }
  CallInProgress(const CallInProgress&) = delete;
  CallInProgress& operator=(const CallInProgress&) = delete;

 private:
  static inline std::atomic<int> count = 0;

  ThreadLimit limit_;  // this call's share of the threads
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
abi::Error* handle(abi::Call* const call) noexcept {
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
    const CallInProgress in_progress;
    Call(*call, operation).run();
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
