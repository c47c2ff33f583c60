#include "run.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "int_math.hpp"
#include "kernels.hpp"
#include "loops.hpp"
#include "schedule.hpp"
#include "scratch.hpp"
#include "staging.hpp"
#include "summation_order.hpp"

namespace onedsl::native {
namespace {

// Short rows of columns have their coefficients repeated in the tables, up to this many entries, so
// that one loop writes several rows.
constexpr Index long_period = 512;
// The tensor must have this many rows for each repeated one, because filling the tables takes time.
constexpr Index rows_per_repetition = 512;
// Columns of so few rows have about as many coefficients and sums as elements. A worker alone runs
// panels of them as tasks of their own: these then stay in cache, and in memory that malloc does
// not return to the system after each call.
constexpr Index few_rows = 16;
constexpr Index columns_in_panel = 1024;

const Kernels& kernels_for(const Call& call, Isa isa) {
  const DataType type = call.data;
  // The other types gain nothing from AVX512_BF16.
  if (isa == Isa::avx512_bf16 && type != DataType::bf16) isa = Isa::avx512;
  constexpr std::array kernels = {&baseline::kernels, &avx2::kernels, &avx512::kernels,
                                  &avx512_bf16::kernels};  // by Isa
  return kernels[static_cast<std::size_t>(isa)](type, call.operation, call.attributes.activation);
}

bool is_forward(const Call& call) { return signature_of(call.operation).is_forward(); }

bool needs_sums(const Call& call) {
  if (call.pass != Pass::both) return call.pass == Pass::reduce;
  return is_forward(call) || call.statistics_kind == StatisticsKind::batch ||
         call.outputs.has(Output::diff_gamma) || call.outputs.has(Output::diff_beta);
}

Samples samples_of(const SummationOrder& order) {
  const Index plane = order.inner;
  const Index elements = order.outer * plane;
  Samples samples;
  samples.channel_stride = plane;
  samples.count = std::min(elements, Samples::most);
  for (Index i = 0; i < samples.count; ++i) {
    const Index element = (2 * i + 1) * elements / (2 * samples.count);
    samples.at[i] = element / plane * order.channels * plane + element % plane;
  }
  return samples;
}

// Whether the reduce pass stores the gradient of the activation, and the apply pass reads it
// instead of diff_dst and dst or the residual.
bool stores_diff(const Call& call, const Pointers& memory, const SummationOrder& order) {
  if (call.pass != Pass::both || is_forward(call)) return false;
  const Activation activation = call.attributes.activation;
  // A ReLU's mask rounds nothing; the other derivatives would be rounded to a 16-bit type.
  if (call.data != DataType::f32 && activation != Activation::relu) return false;
  if (info_of(activation).has_long_formula) {
    if (order.columns) return true;
    // A vector that ends a shorter segment begins in another one, which another thread may write.
    return (order.inner - 1) % order.segment + 1 >= order.lanes;
  }
  // One tensor less to read, if there is dst or a residual. Not with planes, whose inputs stay in
  // cache from one pass to the next: writing both results with non-temporal stores is the least
  // traffic there.
  return order.columns && memory.out[Output::diff_residual] != nullptr &&
         (memory.in[Input::dst] != nullptr || memory.in[Input::residual] != nullptr);
}

// The tensors of both passes, even if the run has only one.
struct RunTensors {
  PassTensors reduce;
  PassTensors apply;
};

RunTensors tensors_of(const Call& call, const Task& task) {
  const InputSet inputs = present(task.memory.in) & input_tensors;
  RunTensors tensors;
  if (call.pass != Pass::both || needs_sums(call)) {
    tensors.reduce.read = inputs & signature_of(call.operation).reduce_inputs;
  }
  tensors.apply.read = inputs;
  tensors.apply.written = present(task.memory.out) & output_tensors;
  if (call.statistics_kind == StatisticsKind::frozen) {
    tensors.apply.read = tensors.apply.read - InputSet(Input::src);
  }
  if (task.stores_diff) {
    const OutputSet stored(task.stored_diff);
    tensors.reduce.written = tensors.apply.read_back = stored;
    tensors.apply.written = OutputSet(Output::diff_src);
    tensors.apply.read =
        tensors.apply.read - InputSet(Input::diff_dst, Input::residual, Input::dst);
  }
  return tensors;
}

Traffic traffic_of(const Call& call, const Pointers& memory, const RunTensors& tensors) {
  const auto count = [](const PassTensors& pass) {
    return static_cast<Index>(pass.read.count() + pass.read_back.count() + pass.written.count());
  };
  const auto& [reduce, apply] = tensors;
  Traffic traffic;
  traffic.type = call.data;
  traffic.reduced = count(reduce);
  traffic.applied = count(apply);
  traffic.tensors = count({reduce.read | apply.read, OutputSet(), reduce.written | apply.written});
  traffic.bytes = static_cast<double>(traffic.tensors * call.geometry.elements()) *
                  static_cast<double>(size_of(call.data));
  traffic.cold_outputs = memory.cold_outputs;
  return traffic;
}

bool may_write_non_temporal(const Task& task) {
  const Pointers& memory = task.memory;
  if (task.stores_diff) return task.stored_diff == Output::diff_residual;
  const Signature& signature = signature_of(task.config.operation);
  if (memory.out[signature.result] == memory.in[signature.in_place_input]) return false;
  // The stores are aligned for the result, and must also be aligned for the other written tensor.
  const void* const other = memory.out[Output::diff_residual];
  const auto line_offset = [](const void* const p) {
    return reinterpret_cast<std::uintptr_t>(p) % cache_line;
  };
  return other == nullptr || line_offset(other) == line_offset(memory.out[Output::diff_src]);
}

// Return the task of a run, with an empty workspace.
Task task_for(const Call& call, const Pointers& memory, const SummationOrder& order) {
  Task task;
  task.memory = memory;
  task.config = static_cast<const OpConfig&>(call);
  task.per_channel = call.pass == Pass::apply && memory.totals.count != nullptr
                         ? *memory.totals.count
                         : static_cast<double>(call.geometry.per_channel());
  const Attributes& attributes = call.attributes;
  if (attributes.activation == Activation::relu) {
    task.relu = relu_of(attributes.parameter, call.data);
  }
  if (attributes.activation == Activation::leaky_relu) {
    task.negative_slope = static_cast<float>(attributes.parameter);
  }
  task.order = order;
  task.stores_diff = stores_diff(call, memory, order);
  if (memory.out[Output::diff_residual] != nullptr) task.stored_diff = Output::diff_residual;
  if (is_forward(call) && needs_sums(call)) task.samples = samples_of(order);
  task.samples.src = memory.in[Input::src];
  return task;
}

// How a run uses its memory and the threads.
struct Plan {
  Task task;
  Traffic traffic;
  Schedule schedule;
  std::optional<Staging> staging;  // of tensors with strides of their own
};

Plan plan_of(const Call& call, const Kernels& kernels, const Pointers& memory,
             const Machine& machine, const int num_threads) {
  Plan plan{task_for(call, memory, order_of(call.geometry, kernels.lanes)), {}, {}, {}};
  Task& task = plan.task;
  const SummationOrder& order = task.order;
  const RunTensors tensors = tensors_of(call, task);
  plan.traffic = traffic_of(call, memory, tensors);
  if (call.layouts) {
    plan.staging.emplace(call, kernels, task, tensors.reduce, tensors.apply, machine);
  }
  const Index granule = plan.staging ? plan.staging->granule() : 1;
  plan.schedule = schedule_for(order, plan.traffic, machine, num_threads, granule);
  if (plan.staging) {
    plan.schedule.prefetch_next_panel = false;
    plan.staging->choose_boxes(order, plan.schedule.block);
  }
  task.exceeds_l2 = plan.schedule.exceeds_l2;
  task.non_temporal = plan.schedule.non_temporal && may_write_non_temporal(task);
  return plan;
}

// Return how many channels are a task of their own: all of them, if the rows are not few.
Index channels_of_task(const Plan& plan) {
  const SummationOrder& order = plan.task.order;
  const bool in_panels = order.columns && order.repeat == 1 && order.rows <= few_rows &&
                         plan.schedule.workers == 1 && !plan.staging;
  if (!in_panels) return order.channels;
  // Whole cache lines.
  const Index panel = columns_in_panel / order.inner / divided_channels * divided_channels;
  return std::min(panel, order.channels);
}

// Return the task of some channels of columns. Their rows remain as far apart.
Task task_of(const Range& channels, const Task& all, const DataType type) {
  const auto first = static_cast<std::size_t>(channels.begin);
  const auto inner = static_cast<std::size_t>(all.order.inner);
  const auto offset = [&](const auto port) {
    return first * (is_tensor(port) ? inner * size_of(type) : sizeof(float));
  };
  Task task = all;
  Pointers& memory = task.memory;
  present(memory.in).for_each([&](const Input port) {
    memory.in[port] = static_cast<const std::byte*>(memory.in[port]) + offset(port);
  });
  present(memory.out).for_each([&](const Output port) {
    memory.out[port] = static_cast<std::byte*>(memory.out[port]) + offset(port);
  });
  if (memory.totals.first != nullptr) {
    memory.totals.first += first;
    memory.totals.second += first;
  }
  task.samples.src = memory.in[Input::src];
  task.order.channels = channels.length();
  return task;
}

// Sets the sizes of the tables, and those of a worker's memory.
void choose_sizes(Plan& plan, const Kernels& kernels, const Index channels, WorkerMemory& worker) {
  const auto& [task, traffic, schedule, staging] = plan;
  const SummationOrder& order = task.order;
  Tables& tables = plan.task.workspace.tables;
  tables.even_first = order.columns && kernels.splits_even_odd;
  tables.entries = channels;
  worker.doubles = scratch_per_plane(order.lanes) * schedule.block;
  worker.staging_bytes = staging ? staging->bytes_per_thread() : 0;
  if (!order.columns) return;
  const Index pair = Index{2} * order.lanes;
  const Index rows = std::min(long_period / order.row, order.rows / rows_per_repetition);
  tables.period = order.repeat * channels * order.inner * std::max<Index>(rows, 1);
  tables.entries = round_up(tables.period + pair, 2);
  const Index columns =
      order.repeat > 1 ? order.row : std::min(schedule.block, channels) * order.inner;
  worker.doubles = worker.floats = scratch_per_column * round_up(columns, pair);
}

// Computes the outputs of one value per channel, which an empty tensor still has.
int run_empty(const Call& call, const Pointers& memory, const Threads& threads,
              const Machine& machine) {
  Call without_tensors = call;
  without_tensors.geometry = Geometry{1, call.geometry.channels, 1};
  without_tensors.layouts = nullptr;
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
  const Plan plan = plan_of(call, kernels_for(call, machine.isa), memory, machine, num_threads);
  const double busy = busy_share(plan.schedule, plan.task.order, plan.traffic, num_threads);
  return {plan.task.order, plan.schedule, busy};
}

int run(const Call& call, const Pointers& memory, const Threads& threads, const Machine& machine) {
  if (call.geometry.elements() == 0) return run_empty(call, memory, threads, machine);
  const Kernels& kernels = kernels_for(call, machine.isa);
  Plan plan = plan_of(call, kernels, memory, machine, threads.count());
  auto& [task, traffic, schedule, staging] = plan;
  const SummationOrder& order = task.order;
  const Index channels = channels_of_task(plan);
  WorkerMemory worker;
  choose_sizes(plan, kernels, channels, worker);
  const Index sums = call.pass == Pass::apply ? 0 : 2 * order.chunks * channels;

  Workspace& workspace = task.workspace;
  const auto for_each_array = [&](const auto& visit) {
    visit(workspace.partials, sums);
    for (float* Tables::* const table : all_tables) {
      visit(workspace.tables.*table, workspace.tables.entries);
    }
    visit(worker.first.doubles, schedule.workers * worker.doubles);
    visit(worker.first.floats, schedule.workers * worker.floats);
    visit(worker.first.staging, schedule.workers * worker.staging_bytes);
  };
  std::size_t bytes = 0;
  for_each_array([&](const auto* array, const Index count) {
    bytes += Scratch::bytes_for<std::decay_t<decltype(*array)>>(count);
  });
  Scratch scratch(bytes);
  for_each_array([&](auto*& array, const Index count) {
    array = scratch.allocate<std::decay_t<decltype(*array)>>(count);
  });

  if (!needs_sums(call)) std::fill_n(workspace.partials, sums, 0.0);
  const auto run_task = [&](const Task& some) {
    if (!is_forward(call)) kernels.prepare(some, {0, some.order.channels});
    RunLoops loops(kernels, some, schedule, staging ? &*staging : nullptr, needs_sums(call),
                   worker);
    threads.run(loops, schedule.workers);
  };
  if (channels == order.channels) {
    run_task(task);
    return schedule.workers;
  }
  for (Index c = 0; c < order.channels; c += channels) {
    run_task(task_of({c, std::min(c + channels, order.channels)}, task, call.data));
  }
  return schedule.workers;
}

}  // namespace onedsl::native
