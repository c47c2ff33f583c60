#include "run.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

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

const Kernels& kernels_for(const Problem& problem, Isa isa) {
  const DataType type = problem.data;
  // The other types gain nothing from AVX512_BF16.
  if (isa == Isa::avx512_bf16 && type != DataType::bf16) isa = Isa::avx512;
  constexpr std::array kernels = {&baseline::kernels, &avx2::kernels, &avx512::kernels,
                                  &avx512_bf16::kernels};  // by Isa
  return kernels[static_cast<std::size_t>(isa)](type, problem.operation);
}

bool is_forward(const Problem& problem) { return signature_of(problem.operation).is_forward(); }

bool needs_sums(const Problem& problem) {
  if (problem.pass != Pass::both) return problem.pass == Pass::reduce;
  return is_forward(problem) || problem.statistics == Statistics::batch ||
         problem.outputs.has(Output::diff_gamma) || problem.outputs.has(Output::diff_beta);
}

Tensors tensors_of(const Ports& ports) {
  const auto input = [&](const Input port) { return static_cast<const float*>(ports.in[port]); };
  const auto output = [&](const Output port) { return static_cast<float*>(ports.out[port]); };
  Tensors tensors;
  tensors.src = ports.in[Input::src];
  tensors.diff_dst = ports.in[Input::diff_dst];
  tensors.residual = ports.in[Input::residual];
  tensors.dst = ports.in[Input::dst];
  tensors.mean = input(Input::mean);
  tensors.variance = input(Input::variance);
  tensors.gamma = input(Input::gamma);
  tensors.beta = input(Input::beta);
  void* const dst = ports.out[Output::dst];
  tensors.result = dst != nullptr ? dst : ports.out[Output::diff_src];
  tensors.diff_residual = ports.out[Output::diff_residual];
  tensors.diff_gamma = output(Output::diff_gamma);
  tensors.diff_beta = output(Output::diff_beta);
  tensors.running_mean = output(Output::running_mean);
  tensors.running_variance = output(Output::running_variance);
  tensors.batch_mean = output(Output::batch_mean);
  tensors.batch_variance = output(Output::batch_variance);
  return tensors;
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

Traffic traffic_of(const Problem& problem, const Ports& ports) {
  Traffic traffic;
  const auto count = [&](const auto port) { traffic.tensors += is_tensor(port) ? 1 : 0; };
  present(ports.in).for_each(count);
  present(ports.out).for_each(count);
  traffic.type = problem.data;
  for (const Input port : {Input::src, Input::diff_dst, Input::dst}) {
    if (ports.in[port] != nullptr) ++traffic.summed;
  }
  traffic.bytes = static_cast<double>(traffic.tensors * problem.geometry.elements()) *
                  static_cast<double>(size_of(problem.data));
  traffic.outputs_given = ports.outputs_given;
  return traffic;
}

// Whether the reduce pass writes diff_residual, and the apply pass reads it instead of diff_dst and
// dst: one tensor less to read. Not with planes, whose inputs stay in cache from one pass to the
// next: writing both results with non-temporal stores is the least traffic there.
bool reduce_writes_residual(const Problem& problem, const Ports& ports,
                            const SummationOrder& order) {
  // A mask from src needs no further tensor in either pass.
  return order.columns && problem.pass == Pass::both &&
         ports.out[Output::diff_residual] != nullptr && ports.in[Input::dst] != nullptr;
}

bool may_write_non_temporal(const Problem& problem, const Ports& ports,
                            const SummationOrder& order) {
  if (reduce_writes_residual(problem, ports, order)) return true;
  const Signature& signature = signature_of(problem.operation);
  if (ports.out[signature.in_place_output] == ports.in[signature.in_place_input]) return false;
  // The stores are aligned for the result, and must also be aligned for the other written tensor.
  const void* const other = ports.out[Output::diff_residual];
  const auto line_offset = [](const void* const p) {
    return reinterpret_cast<std::uintptr_t>(p) % 64;
  };
  return other == nullptr || line_offset(other) == line_offset(ports.out[Output::diff_src]);
}

// Return the task of a run, with an empty workspace.
Task task_for(const Problem& problem, const Ports& ports, const SummationOrder& order) {
  Task task;
  task.tensors = tensors_of(ports);
  task.config = static_cast<const OpConfig&>(problem);
  task.per_channel = problem.pass == Pass::apply && ports.sums.count != nullptr
                         ? *ports.sums.count
                         : static_cast<double>(problem.geometry.per_channel());
  task.totals = ports.sums;
  if (signature_of(problem.operation).has_relu) {
    task.relu = relu_of(problem.attributes.clip, problem.data);
  }
  task.order = order;
  task.reduce_writes_residual = reduce_writes_residual(problem, ports, order);
  if (is_forward(problem) && needs_sums(problem)) task.samples = samples_of(order);
  task.samples.src = task.tensors.src;
  return task;
}

// How a run uses its memory and the threads.
struct Plan {
  Task task;
  Schedule schedule;
  std::optional<Staging> staging;  // of tensors with strides of their own
};

Plan plan_of(const Problem& problem, const Kernels& kernels, const Ports& ports,
             const Machine& machine, const int num_threads) {
  Plan plan{task_for(problem, ports, order_of(problem.geometry, kernels.lanes)), {}, {}};
  Task& task = plan.task;
  const SummationOrder& order = task.order;
  if (problem.layouts) plan.staging.emplace(problem, kernels, task, ports);
  const Index granule = plan.staging ? plan.staging->granule() : 1;
  plan.schedule = schedule_for(order, traffic_of(problem, ports), machine, num_threads, granule);
  if (plan.staging) {
    plan.schedule.prefetch_next_panel = false;
    plan.staging->choose_boxes(order, plan.schedule.block);
  }
  task.out_of_cache = plan.schedule.out_of_cache;
  task.non_temporal = plan.schedule.non_temporal && may_write_non_temporal(problem, ports, order);
  return plan;
}

}  // namespace

KernelInfo kernel_info(const Problem& problem, const int num_threads, const bool outputs_given,
                       const Machine& machine) {
  // The schedule depends on which ports are used, not on their memory.
  static std::byte memory;
  Ports ports;
  problem.inputs.for_each([&](const Input port) { ports.in[port] = &memory; });
  problem.outputs.for_each([&](const Output port) { ports.out[port] = &memory; });
  ports.outputs_given = outputs_given;
  const Plan plan =
      plan_of(problem, kernels_for(problem, machine.isa), ports, machine, num_threads);
  const double busy =
      busy_share(plan.schedule, plan.task.order, traffic_of(problem, ports), num_threads);
  return {plan.task.order, plan.schedule, busy};
}

void run(const Problem& problem, const Threads& threads, const Ports& ports,
         const Machine& machine) {
  if (problem.geometry.elements() == 0) {
    // An empty tensor still has outputs of one value per channel.
    Problem without_tensors = problem;
    without_tensors.geometry = Geometry{1, problem.geometry.channels, 1};
    without_tensors.layouts = nullptr;
    Ports vectors = ports;
    present(ports.out).for_each([&](const Output port) {
      if (is_tensor(port)) vectors.out[port] = nullptr;
    });
    return run(without_tensors, threads, vectors, machine);
  }
  const Kernels& kernels = kernels_for(problem, machine.isa);
  Plan plan = plan_of(problem, kernels, ports, machine, threads.count());
  auto& [task, schedule, staging] = plan;
  const SummationOrder& order = task.order;

  Tables& tables = task.workspace.tables;
  const Index pair = Index{2} * order.lanes;
  tables.entries = order.channels;
  tables.even_first = order.columns && kernels.splits_even_odd;
  WorkerMemory worker;
  worker.doubles = scratch_per_plane(order.lanes) * schedule.block;
  worker.staging_bytes = staging ? staging->bytes_per_thread() : 0;
  Index floats = 0;
  if (order.columns) {
    const Index rows = std::min(long_period / order.row, order.rows / rows_per_repetition);
    tables.period = order.row * std::max<Index>(rows, 1);
    tables.entries = round_up(tables.period + pair, 2);
    const Index columns = order.repeat > 1 ? order.row : schedule.block * order.inner;
    worker.doubles = scratch_per_column * round_up(columns, pair);
    floats = schedule.workers * worker.doubles;
  }
  const Index doubles = schedule.workers * worker.doubles;
  const Index staging_bytes = schedule.workers * worker.staging_bytes;
  const Index sums = problem.pass == Pass::apply ? 0 : 2 * order.chunks * order.channels;

  const std::array all_tables = {&tables.pivot, &tables.mean,  &tables.scale,
                                 &tables.beta,  &tables.shift, &tables.slope};
  Scratch memory(Scratch::bytes_for<double>(sums) +
                 all_tables.size() * Scratch::bytes_for<float>(tables.entries) +
                 Scratch::bytes_for<double>(doubles) + Scratch::bytes_for<float>(floats) +
                 Scratch::bytes_for<std::byte>(staging_bytes));
  task.workspace.partials = memory.allocate<double>(sums);
  for (float** const table : all_tables) *table = memory.allocate<float>(tables.entries);
  worker.first.doubles = memory.allocate<double>(doubles);
  worker.first.floats = memory.allocate<float>(floats);
  worker.first.staging = memory.allocate<std::byte>(staging_bytes);

  if (!needs_sums(problem)) std::fill_n(task.workspace.partials, sums, 0.0);
  if (!is_forward(problem)) kernels.prepare(task, {0, order.channels});
  RunLoops loops(kernels, task, schedule, staging ? &*staging : nullptr, needs_sums(problem),
                 worker);
  threads.run(loops, schedule.workers);
}

}  // namespace onedsl::native
