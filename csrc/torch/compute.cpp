#include "compute.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "../core/threads.hpp"
#include "../native/run_call.hpp"

namespace onedsl::torch {
namespace {

// ---- Runs ----

// Returns the threads of PyTorch's number, which belongs to the process. Reading it sets OpenMP's
// number of the calling thread, on which PyTorch may not have computed yet.
OpenMPThreads threads() {
  std::uint32_t count = 0;
  throw_if(api->num_threads(&count));
  return OpenMPThreads(std::min(static_cast<int>(count), max_threads()));
}

void run(TensorCall& call, const Pointers& memory) {
  call.given = present(memory.in);
  call.outputs = present(memory.out);
  native::run_call(call, memory, threads());
}

// Returns a new tensor for an output of a call; an undefined tensor, and no memory, if not wanted.
OwnedTensor output(Pointers& memory, const Output port, const TensorCall& call,
                   const bool wanted = true) {
  if (!wanted) return make(api->undefined);
  OwnedTensor made =
      is_tensor(port) ? empty_like(*call.out[port]) : empty_vector(call.geometry.channels);
  memory.out[port] = memory_of<void>(*made);
  return made;
}

// Copies the inputs of a rejected call that it cannot use as they are. If the results cannot be
// written in src's order of axes, src is copied to theirs.
void copy_inputs(TensorCall& call, const Rejection& rejection) {
  const bool is_reordered = !rejection.to_copy_back.empty();
  const InputSet copied = is_reordered ? InputSet(Input::src) : rejection.to_copy;
  View dense = call.src();
  dense.strides = is_reordered ? call.strides.data() : rejection.strides.data();
  copied.for_each([&](const Input port) {
    OwnedTensor copy;
    if (is_tensor(port)) {
      copy = empty_like(dense);
      constexpr std::int32_t non_blocking = 0;
      throw_if(api->copy(copy.get(), call.tensors[port], non_blocking));
    } else {
      copy = make(api->clone, call.tensors[port]);
    }
    call.tensors[port] = copy.get();
    call.in[port] = view_of(*copy);
    call.copies.push_back(std::move(copy));
  });
  call.copied_inputs = call.copied_inputs | copied;
}

}  // namespace

CallRules rules_of(const Operation operation) noexcept {
  const Signature& signature = signature_of(operation);
  CallRules rules = CallRules::of(signature);
  rules.types = TypePairs();
  for (const TypePair& pair : supported_types) {
    if (pair.second == DataType::f32) rules.types.add(pair);
  }
  rules.ranks.first = 2;
  rules.channel_axis = 1;
  rules.min_values = 2;
  rules.statistics_like_src = true;
  rules.pitched_tensors = true;
  // The caller computes the gradient of the activation alone where the program changed the weight.
  rules.outputs_need_alternative = false;
  if (signature.is_forward()) {
    rules.all_or_none = InputSet(Input::mean, Input::variance);
    rules.optional = rules.optional.with(Input::mean).with(Input::variance);
    for (const Output running : {Output::running_mean, Output::running_variance}) {
      rules.in_place[running] = updated_input(running);
    }
  }
  return rules;
}

const char* why_unsupported(const Operation operation,
                            const std::vector<std::optional<TensorInfo>>& inputs,
                            const double epsilon) {
  OpConfig config;
  config.operation = operation;
  config.attributes.epsilon = epsilon;
  std::vector<std::optional<ArrayInfo>> infos;
  for (const std::optional<TensorInfo>& input : inputs) {
    infos.emplace_back();
    if (!input) continue;
    const auto& [is_usable, type, shape] = *input;
    if (!is_usable) return unsupported({Reason::not_an_array, Input::src});
    infos.back().emplace(type, shape);
  }
  const auto found = check_shapes(rules_of(operation), config, infos);
  return found ? unsupported(*found) : "";
}

const Tensor* pointer_to(const OptionalTensor& tensor) {
  return tensor && is_defined(*tensor) ? &*tensor : nullptr;
}

TensorCall forward_call(const OpConfig& config, const Tensor& src, const OptionalTensor& weight,
                        const OptionalTensor& bias, const OptionalTensor& running_mean,
                        const OptionalTensor& running_var) {
  TensorCall call(config);
  call.tensors[Input::src] = &src;
  call.tensors[Input::mean] = pointer_to(running_mean);
  call.tensors[Input::variance] = pointer_to(running_var);
  call.tensors[Input::gamma] = pointer_to(weight);
  call.tensors[Input::beta] = pointer_to(bias);
  call.outputs = OutputSet(Output::dst);
  return call;
}

TensorCall backward_call(const OpConfig& config, const Tensor& diff_dst, const Tensor& src,
                         const OptionalTensor& weight, const Tensor* const mean,
                         const Tensor* const variance) {
  TensorCall call(config);
  call.tensors[Input::src] = &src;
  call.tensors[Input::diff_dst] = &diff_dst;
  call.tensors[Input::mean] = mean;
  call.tensors[Input::variance] = variance;
  call.tensors[Input::gamma] = pointer_to(weight);
  call.outputs = OutputSet(Output::diff_src);
  return call;
}

std::optional<Rejection> check_call(const CallRules& rules, const InputSet copied,
                                    StridesOf* const strides_of, TensorCall& call) {
  std::optional<Rejection> found;
  present(call.tensors).all_of([&](const Input port) {
    call.in[port] = view_of(*call.tensors[port]);
    if (!call.in[port]) found = Rejection{Reason::not_an_array, port};
    return !found;
  });
  if (found) return found;
  call.outputs_described = true;
  const std::optional<View>& diff_dst = call.in[Input::diff_dst];
  call.strides = strides_of(call.src(), diff_dst ? &*diff_dst : nullptr);
  call.outputs.for_each([&](const Output port) {
    call.out[port] = call.in[updated_input(port).value_or(Input::src)];
    if (!is_tensor(port)) return;
    call.out[port]->data = nullptr;
    call.out[port]->strides = call.strides.data();
  });
  found = check(rules, call);
  // Once src is copied, the layouts of the others are compared with the copy's.
  for (int copies = 0; found && copies < 2; ++copies) {
    const bool is_repairable = (found->to_copy - copied).empty() &&
                               !(found->to_copy.empty() && found->to_copy_back.empty());
    if (!is_repairable) break;
    copy_inputs(call, *found);
    found = check(rules, call);
  }
  return found;
}

std::string with_copies(const char* const computed, const TensorCall& call) {
  std::string text = computed;
  const char* separator = ", copied ";
  (call.copied_inputs & input_tensors).for_each([&](const Input port) {
    text += separator;
    text += name_of(port);
    separator = " ";
  });
  return text;
}

Results<3> compute_forward(TensorCall& call, const Running& running, const Totals& totals) {
  Pointers memory = pointers_of(call);
  memory.totals = totals;
  std::vector<float> before;
  call.attributes.unbiased = true;
  memory.out[Output::running_mean] = running.mean;
  memory.out[Output::running_variance] = running.variance;
  if (running.mean != nullptr) {
    call.attributes.momentum = 1 - running.momentum;
    // The kernel reads copies, because it writes twice where sums lost precision.
    before.assign(running.mean, running.mean + call.geometry.channels);
    before.insert(before.end(), running.variance, running.variance + call.geometry.channels);
    memory.in[Input::mean] = before.data();
    memory.in[Input::variance] = before.data() + call.geometry.channels;
  }
  Results<3> results = {output(memory, Output::dst, call), output(memory, Output::batch_mean, call),
                        output(memory, Output::batch_variance, call)};
  run(call, memory);
  return results;
}

Results<4> compute_backward(TensorCall& call, const bool parameters, const Totals& totals) {
  Pointers memory = pointers_of(call);
  memory.totals = totals;
  Results<4> results = {
      output(memory, Output::diff_src, call), output(memory, Output::diff_gamma, call, parameters),
      output(memory, Output::diff_beta, call, parameters),
      output(memory, Output::diff_residual, call, call.outputs.has(Output::diff_residual))};
  run(call, memory);
  return results;
}

OwnedTensor compute_totals(TensorCall& call) {
  call.pass = Pass::reduce;
  Pointers memory;
  (call.given & signature_of(call.operation).reduce_inputs).for_each([&](const Input port) {
    memory.in[port] = call.in[port]->data;
  });
  OwnedTensor vector = empty_vector(1 + 2 * call.geometry.channels, api->f64);
  memory.totals = totals_in(memory_of<double>(*vector), call.geometry.channels);
  run(call, memory);
  return vector;
}

// The library is never deleted: PyTorch's dispatcher cannot remove a kernel safely while other
// threads call it.
void add_kernels(const char* const ops,
                 const std::initializer_list<std::pair<const char*, Kernel*>> kernels) {
  Library* library = nullptr;
  throw_if(api->make_library(ops, "CPU", "onedsl/csrc/torch", 0, &library));
  for (const auto& [op, kernel] : kernels) {
    throw_if(api->add_kernel(library, op, kernel, oldest_version));
  }
}

}  // namespace onedsl::torch
