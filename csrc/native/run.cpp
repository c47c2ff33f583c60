#include "run.hpp"

#include <algorithm>
#include <cstddef>

#include "kernels/kernels.hpp"
#include "loops.hpp"
#include "plan/buffers.hpp"
#include "plan/plan.hpp"

namespace onedsl::native {
namespace {

// Return what the kernels read of a run.
KernelArgs args_of(const Call& call, const Pointers& memory, const Plan& plan,
                   const Buffers& buffers) {
  const Attributes& attributes = call.attributes;
  const bool is_relu = attributes.activation == Activation::relu;
  const bool is_leaky = attributes.activation == Activation::leaky_relu;
  const double per_channel = call.pass == Pass::apply && memory.totals.count != nullptr
                                 ? *memory.totals.count
                                 : static_cast<double>(call.geometry.per_channel());
  // Not member by member: clearing the members first takes 2 % of a call of 16 KB.
  return {call,
          is_relu ? relu_of(attributes.parameter, call.data) : Relu{},
          is_leaky ? static_cast<float>(attributes.parameter) : 0,
          plan.order,
          memory.in,
          memory.out,
          &call.pitches,
          plan.neighboring_positions,
          plan.neighboring_channels,
          plan.stored_diff.value_or(Output::diff_src),
          buffers.partials(),
          buffers.tables(),
          plan.schedule.exceeds_l2,
          plan.non_temporal,
          per_channel,
          memory.totals,
          plan.samples};
}

// Return the args of some channels of columns, whose positions are no neighbors.
KernelArgs args_of(const Range& channels, const KernelArgs& all, const DataType type) {
  const auto first = static_cast<std::size_t>(channels.begin);
  const auto inner = static_cast<std::size_t>(all.order.inner);
  const auto offset = [&](const auto port) {
    return first * (is_tensor(port) ? inner * size_of(type) : sizeof(float));
  };
  KernelArgs args = all;
  present(all.in).for_each([&](const Input port) {
    args.in[port] = static_cast<const std::byte*>(all.in[port]) + offset(port);
  });
  present(all.out).for_each([&](const Output port) {
    args.out[port] = static_cast<std::byte*>(all.out[port]) + offset(port);
  });
  if (all.totals.first != nullptr) {
    args.totals.first += first;
    args.totals.second += first;
  }
  args.samples.src = args.in[Input::src];
  args.order.channels = channels.length();
  args.order.row = channels.length() * all.order.inner;
  args.neighboring_positions = false;
  return args;
}

// Computes the outputs of one value per channel, which an empty tensor still has.
int run_empty(const Call& call, const Pointers& memory, const Threads& threads,
              const Machine& machine) {
  Call without_tensors = call;
  without_tensors.geometry = Geometry{1, call.geometry.channels, 1};
  without_tensors.pitches = {};
  Pointers vectors = memory;
  output_tensors.for_each([&](const Output port) { vectors.out[port] = nullptr; });
  return run(without_tensors, vectors, threads, machine);
}

}  // namespace

KernelInfo kernel_info(const Call& call, const int num_threads, const bool cold_outputs,
                       const Machine& machine) {
  // The schedule depends on which ports are used, not on their memory.
  static std::byte byte;
  Pointers memory;
  call.given.for_each([&](const Input port) { memory.in[port] = &byte; });
  call.outputs.for_each([&](const Output port) { memory.out[port] = &byte; });
  memory.cold_outputs = cold_outputs;
  const Plan plan = plan_of(call, memory, machine, num_threads);
  const double busy = busy_share(plan.schedule, plan.order, plan.traffic, num_threads);
  return {plan.order, plan.schedule, busy};
}

int run(const Call& call, const Pointers& memory, const Threads& threads, const Machine& machine) {
  if (call.geometry.elements() == 0) return run_empty(call, memory, threads, machine);
  const Plan plan = plan_of(call, memory, machine, threads.count());
  const Buffers buffers(plan.sizes);
  if (!plan.needs_sums) std::fill_n(buffers.partials(), plan.sizes.partials, 0.0);
  const KernelArgs args = args_of(call, memory, plan, buffers);
  const auto run_loops = [&](const KernelArgs& some) {
    if (!signature_of(call.operation).is_forward()) {
      plan.kernels.prepare(some, {0, some.order.channels});
    }
    RunLoops loops(plan, some, buffers);
    threads.run(loops, plan.schedule.workers);
  };
  const Index channels = plan.order.channels;
  const Index together = plan.channels_together;
  if (together == channels) {
    run_loops(args);
    return plan.schedule.workers;
  }
  for (Index c = 0; c < channels; c += together) {
    run_loops(args_of({c, std::min(c + together, channels)}, args, call.data));
  }
  return plan.schedule.workers;
}

}  // namespace onedsl::native
