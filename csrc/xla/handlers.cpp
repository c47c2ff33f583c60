#include "handlers.hpp"

#include <algorithm>
#include <cmath>
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

[[noreturn]] void refuse(const char* const port, const char* const why) {
  throw BadCall(std::string(port) + " " + why);
}

// An item's place in memory. Under vmap arrays have axes in front of it, each of the batch's size,
// or 1 where all items share one.
struct Items {
  char* data = nullptr;
  const std::int64_t* sizes = nullptr;
  std::int64_t bytes = 0;  // of one

  char* at(std::int64_t index, const std::int64_t* const batch, const std::int64_t rank) const {
    std::int64_t offset = 0;
    std::int64_t stride = bytes;
    for (std::int64_t axis = rank; axis-- > 0;) {
      if (sizes[axis] != 1) offset += index % batch[axis] * stride;
      stride *= sizes[axis];
      index /= batch[axis];
    }
    return data + offset;
  }
};

// XLA's call, checked for memory safety.
class Checked {
 public:
  Checked(const abi::Call& call, const Operation operation) : signature_(signature_of(operation)) {
    set_inputs(call.arguments);
    const abi::Buffer& src = buffer(call.arguments, 0);
    const std::int64_t rank = integer(call.attributes, "rank");
    if (rank < 2 || rank > src.rank || rank > max_rank) refuse("rank", "must be 2 to src's");
    batch_ = src.rank - rank;
    const bool last = is_first(call.attributes, "data_format", "NXC", "NCX");
    const bool frozen = is_first(call.attributes, "statistics", "frozen", "batch");
    const double epsilon = number(call.attributes, "epsilon");
    if (!(std::isfinite(epsilon) && epsilon > 0)) refuse("epsilon", "must be positive and finite");
    set_problem(src, last);
    key_.problem.operation = operation;
    key_.problem.statistics = frozen ? Statistics::frozen : Statistics::batch;
    key_.problem.attributes.epsilon = epsilon;
    key_.problem.outputs = signature_.outputs;
    key_.num_threads = max_threads();
    key_.fork_generation = fork_generation();
    set_arrays(call, src);
  }

  void run() const {
    const std::shared_ptr<const Plan> plan = find_plan(key_);
    for (std::int64_t index = 0; index < count_; ++index) {
      Ports ports;
      inputs_.for_each(
          [&](const Input port) { ports.in[port] = in_[port].at(index, batch_sizes_, batch_); });
      signature_.outputs.for_each(
          [&](const Output port) { ports.out[port] = out_[port].at(index, batch_sizes_, batch_); });
      plan->execute(ports);
    }
  }

 private:
  // An op's optional inputs come all, or none.
  void set_inputs(const abi::Buffers& arguments) {
    const auto given = static_cast<std::size_t>(arguments.count);
    const bool all = given == signature_.inputs.count();
    if (!all && given != signature_.inputs.count() - signature_.optional.count()) {
      throw BadCall("there must be an array for each input of the op");
    }
    signature_.inputs.for_each([&](const Input port) {
      if (all || !signature_.optional.has(port)) inputs_.add(port);
    });
  }

  void set_problem(const abi::Buffer& src, const bool channels_last) {
    const std::int64_t rank = src.rank - batch_;
    const std::int64_t* const sizes = src.sizes + batch_;
    std::array<std::ptrdiff_t, max_rank> strides;
    std::ptrdiff_t stride = 1;
    for (std::int64_t axis = rank; axis-- > 0;) {
      strides[static_cast<std::size_t>(axis)] = stride;
      if (__builtin_mul_overflow(stride, std::max<std::int64_t>(sizes[axis], 1), &stride)) {
        refuse("src", "has more elements than can be counted");
      }
    }
    const auto channel = static_cast<unsigned>(channels_last ? rank - 1 : 1);
    key_.problem.data = type_of(src);
    const std::optional<Geometry> geometry = dense_geometry(
        rank, sizes, strides.data(), 1, static_cast<std::ptrdiff_t>(size_of(key_.problem.data)),
        KeptAxes{1} << channel);
    if (!geometry) refuse("src", "has more elements than can be counted");
    key_.problem.geometry = *geometry;
  }

  void set_arrays(const abi::Call& call, const abi::Buffer& src) {
    if (static_cast<std::size_t>(call.results.count) != signature_.outputs.count()) {
      throw BadCall("there must be an array for each output of the op");
    }
    // Results have the batch's own sizes, and arguments those, or 1.
    batch_sizes_ = buffer(call.results, 0).sizes;
    if (buffer(call.results, 0).rank < batch_) refuse("the first result", "has too few axes");
    for (std::int64_t axis = 0; axis < batch_; ++axis) {
      if (__builtin_mul_overflow(count_, batch_sizes_[axis], &count_)) {
        refuse("the batch", "has more items than can be counted");
      }
    }
    const std::int64_t* const shape = src.sizes + batch_;
    const std::int64_t rank = src.rank - batch_;
    std::int64_t next = 0;
    bool first = true;
    inputs_.for_each([&](const Input port) {
      const char* const name = input_names[static_cast<std::size_t>(port)];
      const abi::Buffer& array = buffer(call.arguments, next++);
      if (!is_tensor(port) && first) {
        key_.statistics_type = type_of(array);
        if (key_.statistics_type != DataType::f32 &&
            (key_.statistics_type != DataType::bf16 || key_.problem.data != DataType::bf16)) {
          refuse(name, "must be f32, or bf16 where src is bf16");
        }
        first = false;
      }
      in_[port] = items(name, array, is_tensor(port), shape, rank);
    });
    next = 0;
    signature_.outputs.for_each([&](const Output port) {
      const char* const name = output_names[static_cast<std::size_t>(port)];
      const abi::Buffer& array = buffer(call.results, next++);
      out_[port] = items(name, array, is_tensor(port), shape, rank);
      for (std::int64_t axis = 0; axis < batch_; ++axis) {
        if (array.sizes[axis] != batch_sizes_[axis]) refuse(name, "must have the batch's sizes");
      }
    });
  }

  Items items(const char* const name, const abi::Buffer& array, const bool is_tensor,
              const std::int64_t* const shape, const std::int64_t rank) const {
    const Geometry& geometry = key_.problem.geometry;
    const std::int64_t statistics = geometry.statistics();
    const DataType type = is_tensor ? key_.problem.data : key_.statistics_type;
    const std::int64_t* const wanted = is_tensor ? shape : &statistics;
    const std::int64_t axes = is_tensor ? rank : 1;
    if (type_of(array) != type)
      refuse(name, is_tensor ? "must have src's type" : "must have mean's type");
    if (array.rank != batch_ + axes) refuse(name, "has not as many axes as it must");
    for (std::int64_t axis = 0; axis < batch_; ++axis) {
      if (array.sizes[axis] != 1 && array.sizes[axis] != batch_sizes_[axis]) {
        refuse(name, "must have the batch's sizes, or 1");
      }
    }
    for (std::int64_t axis = 0; axis < axes; ++axis) {
      if (array.sizes[batch_ + axis] != wanted[axis]) {
        refuse(name, is_tensor ? "must have src's shape" : "must have one value a channel");
      }
    }
    const std::int64_t elements = is_tensor ? geometry.elements() : statistics;
    return {static_cast<char*>(array.data), array.sizes,
            elements * static_cast<std::int64_t>(size_of(type))};
  }

  const Signature& signature_;
  InputSet inputs_;
  PlanKey key_;
  std::int64_t batch_ = 0;                     // axes of
  const std::int64_t* batch_sizes_ = nullptr;  // as many
  std::int64_t count_ = 1;                     // items of
  PerPort<Input, Items> in_;
  PerPort<Output, Items> out_;
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

// No exception may go up into XLA.
template <Operation operation>
abi::Error* handle(abi::Call* const call) noexcept {
  if (call->extensions != nullptr && call->extensions->type == abi::Extension::metadata) {
    // XLA's own minor version, as all of them are alike here: another one than it takes, now or
    // when it forgets old ones, would stop JAX from working at all. JAX 0.6 does not give it.
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
    Checked(*call, operation).run();
    return nullptr;
  } catch (const BadCall& bad) {
    return error(api, abi::invalid_argument, operation, bad.what());
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
