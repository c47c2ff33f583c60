#include "handlers.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>

#include "../core/threads.hpp"
#include "../plan/cache.hpp"
#include "call_frame.hpp"

namespace onedsl::xla {
namespace {

[[noreturn]] void reject(const char* const argument, const char* const why) {
  throw InvalidCall(std::string(argument) + " " + why);
}

// One array of the call. Under vmap it has leading batch axes, each of the batch's size, or of size
// 1 if all items share the data.
struct Array {
  char* data = nullptr;
  const std::int64_t* sizes = nullptr;
  std::int64_t item_bytes = 0;

  // Returns the memory of one item of the batch.
  char* at(std::int64_t index, const std::int64_t* const batch_sizes,
           const std::int64_t batch_rank) const {
    std::int64_t offset = 0;
    std::int64_t stride = item_bytes;
    for (std::int64_t axis = batch_rank; axis-- > 0;) {
      if (sizes[axis] != 1) offset += index % batch_sizes[axis] * stride;
      stride *= sizes[axis];
      index /= batch_sizes[axis];
    }
    return data + offset;
  }
};

// A call of XLA, validated for memory safety.
class Call {
 public:
  Call(const abi::Call& call, const Operation operation) : signature_(signature_of(operation)) {
    OpConfig config;
    config.operation = operation;
    config.attributes.epsilon = number(call.attributes, "epsilon");
    if (!is_valid_epsilon(config.attributes.epsilon)) {
      reject("epsilon", "must be positive and finite");
    }
    const bool frozen = is_first(call.attributes, "statistics", "frozen", "batch");
    config.statistics = frozen ? Statistics::frozen : Statistics::batch;
    const bool channels_last = is_first(call.attributes, "data_format", "NXC", "NCX");

    set_inputs(call.arguments);
    const abi::Buffer& src = buffer(call.arguments, 0);
    rank_ = integer(call.attributes, "rank");
    if (rank_ < 2 || rank_ > src.rank || rank_ > max_rank) {
      reject("rank", "must be between 2 and the rank of src");
    }
    batch_rank_ = src.rank - rank_;
    shape_ = src.sizes + batch_rank_;
    data_ = type_of(src);
    geometry_ = geometry(channels_last);
    set_arrays(call);
    key_ = make_key(config, geometry_, data_, statistics_type_, inputs_, signature_.outputs);
  }

  void run() const {
    const std::shared_ptr<const Plan> plan = find_plan(key_);
    for (std::int64_t index = 0; index < batch_count_; ++index) {
      Ports ports;
      inputs_.for_each([&](const Input port) {
        ports.in[port] = in_[port].at(index, batch_sizes_, batch_rank_);
      });
      signature_.outputs.for_each([&](const Output port) {
        ports.out[port] = out_[port].at(index, batch_sizes_, batch_rank_);
      });
      plan->execute(ports);
    }
  }

 private:
  // onedsl.jax passes all optional inputs or none.
  void set_inputs(const abi::Buffers& arguments) {
    const auto count = static_cast<std::size_t>(arguments.count);
    const bool all = count == signature_.inputs.count();
    if (!all && count != signature_.inputs.count() - signature_.optional.count()) {
      throw InvalidCall("there must be one array for each input of the op");
    }
    signature_.inputs.for_each([&](const Input port) {
      if (all || !signature_.optional.has(port)) inputs_.add(port);
    });
  }

  Geometry geometry(const bool channels_last) const {
    std::array<std::ptrdiff_t, max_rank> strides;
    const bool fits = c_strides(rank_, shape_, 1, strides.data());
    const View item{data_, nullptr, rank_, shape_, strides.data()};
    const auto channel_axis = static_cast<unsigned>(channels_last ? rank_ - 1 : 1);
    const std::optional<Geometry> geometry = dense_geometry(item, ChannelAxes{1} << channel_axis);
    if (!fits || !geometry) reject("src", "has too many elements");
    return *geometry;
  }

  void set_arrays(const abi::Call& call) {
    if (static_cast<std::size_t>(call.results.count) != signature_.outputs.count()) {
      throw InvalidCall("there must be one array for each output of the op");
    }
    const abi::Buffer& first_result = buffer(call.results, 0);
    if (first_result.rank < batch_rank_) reject("the first result", "has too few axes");
    batch_sizes_ = first_result.sizes;
    for (std::int64_t axis = 0; axis < batch_rank_; ++axis) {
      if (__builtin_mul_overflow(batch_count_, batch_sizes_[axis], &batch_count_)) {
        reject("the batch", "has too many items");
      }
    }
    std::int64_t next = 0;
    bool is_first_statistic = true;
    inputs_.for_each([&](const Input port) {
      const char* const name = input_names[static_cast<std::size_t>(port)];
      const abi::Buffer& array = buffer(call.arguments, next++);
      if (!is_tensor(port) && is_first_statistic) {
        is_first_statistic = false;
        statistics_type_ = type_of(array);
        if (!is_supported(data_, statistics_type_)) {
          reject(name, "must be f32, or bf16 where src is bf16");
        }
      }
      in_[port] = checked(name, array, is_tensor(port));
    });
    next = 0;
    signature_.outputs.for_each([&](const Output port) {
      const char* const name = output_names[static_cast<std::size_t>(port)];
      const abi::Buffer& array = buffer(call.results, next++);
      out_[port] = checked(name, array, is_tensor(port));
      if (!std::equal(batch_sizes_, batch_sizes_ + batch_rank_, array.sizes)) {
        reject(name, "must have the sizes of the batch");
      }
    });
  }

  Array checked(const char* const name, const abi::Buffer& array, const bool is_tensor) const {
    const std::int64_t statistics = geometry_.channels;
    const DataType type = is_tensor ? data_ : statistics_type_;
    const std::int64_t* const shape = is_tensor ? shape_ : &statistics;
    const std::int64_t rank = is_tensor ? rank_ : 1;
    if (type_of(array) != type) {
      reject(name, is_tensor ? "must have the type of src" : "must have the type of mean");
    }
    if (array.rank != batch_rank_ + rank) reject(name, "has a wrong number of axes");
    for (std::int64_t axis = 0; axis < batch_rank_; ++axis) {
      if (array.sizes[axis] != 1 && array.sizes[axis] != batch_sizes_[axis]) {
        reject(name, "must have the sizes of the batch, or 1");
      }
    }
    if (!std::equal(shape, shape + rank, array.sizes + batch_rank_)) {
      reject(name, is_tensor ? "must have the shape of src" : "must have one value per channel");
    }
    const std::int64_t elements = is_tensor ? geometry_.elements() : statistics;
    return {static_cast<char*>(array.data), array.sizes,
            elements * static_cast<std::int64_t>(size_of(type))};
  }

  const Signature& signature_;
  InputSet inputs_;
  std::int64_t rank_ = 0;                // of src, without batch axes
  const std::int64_t* shape_ = nullptr;  // of src, without batch axes
  DataType data_ = DataType::f32;
  DataType statistics_type_ = DataType::f32;
  Geometry geometry_;
  std::int64_t batch_rank_ = 0;
  const std::int64_t* batch_sizes_ = nullptr;
  std::int64_t batch_count_ = 1;
  PerPort<Input, Array> in_;
  PerPort<Output, Array> out_;
  PlanKey key_;
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

abi::Error* error(const abi::Api& api, const abi::Code code, const char* const message) noexcept {
  abi::ErrorArguments arguments = {sizeof arguments, nullptr, message, code};
  return api.create_error(&arguments);
}

abi::Error* error(const abi::Api& api, const abi::Code code, const Operation operation,
                  const char* const why) noexcept {
  try {
    const std::string name = signature_of(operation).name;
    return error(api, code, ("onedsl's handler of " + name + ": " + why).c_str());
  } catch (const std::bad_alloc&) {
    return error(api, abi::resource_exhausted, "onedsl: no memory");
  }
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

}  // namespace

const std::array<NamedHandler, 2> handlers = {{
    {"onedsl_batch_norm_training_backward", &handle<Operation::training_backward>},
    {"onedsl_batch_norm_forward_training", &handle<Operation::forward_training>},
}};

}  // namespace onedsl::xla
