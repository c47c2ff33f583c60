#include "run.hpp"

#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <exception>

#include "int_math.hpp"
#include "kernels.hpp"
#include "places.hpp"
#include "schedule.hpp"
#include "scratch.hpp"
#include "summation_order.hpp"
#include "task.hpp"

namespace onedsl::native {
namespace {

// A cold output costs less when it is not first read; but what follows reads it, and had better
// find it in the last cache. A chain of layers gains where the tensors of one fill so much of it.
constexpr double non_temporal_from = 0.5;
// A run of tables that stream has so many elements, where rows are shorter.
constexpr Index streamed_period = 512;
// Groups for each thread, from which on no group is shared by threads.
constexpr Index many_groups = 4;

const Kernels& kernels_for(const Isa isa, const DataType type, const Variant variant) {
  switch (isa) {
    case Isa::avx512_bf16:
      return avx512_bf16::kernels(type, variant);
    case Isa::avx512:
      return avx512::kernels(type, variant);
    case Isa::avx2:
      return avx2::kernels(type, variant);
    case Isa::baseline:
      break;
  }
  return baseline::kernels(type, variant);
}

void wait_for(const Worker& worker) {
  if (worker.workers > 1) {
#pragma omp barrier
  }
}

// One block, at all the places that it is summed over.
struct BlockRun {
  const Kernels& kernels;
  const Task& task;
  const Schedule& schedule;
  const Places& places;
  bool needs_sums;
  bool makes_statistics;
  std::atomic<Index>& unfinished;  // parts of panels that had to be summed again

  // One thread's part in it.
  void work(const Worker& worker, const PartialScratch& scratch) const {
    const Range panels = panels_of(schedule, task.order, worker);
    for (Index panel = panels.begin; panel < panels.end; ++panel) {
      const Range channels = channels_of(schedule, task.order, panel);
      const bool asks = schedule.prefetch_next_panel && panel + 1 < panels.end;
      const Index to_next = asks ? schedule.panel * task.order.inner : 0;
      work_on_panel(channels, to_next, schedule.own_panels ? Worker{} : worker, scratch);
    }
    if (task.non_temporal) kernels.fence();
  }

  void work_on_panel(const Range& panel, const Index to_next, const Worker& worker,
                     const PartialScratch& scratch) const {
    const Range units =
        share_of(units_in(schedule, task.order, panel), worker.index, worker.workers);
    const Range share = share_of(panel.end - panel.begin, worker.index, worker.workers);
    const Range channels{panel.begin + share.begin, panel.begin + share.end};
    if (makes_statistics) {
      kernels.prepare(task, channels);
      wait_for(worker);
    }
    if (!sum_up(panel, units, channels, worker, scratch)) {
      sum_up(panel, units, channels, worker, scratch);
    }
    if (task.tensors.result == nullptr) return;
    // Backwards: what was read last is still in the caches.
    for (Index unit = units.end; unit-- > units.begin;) {
      write(unit_of(schedule, task.order, panel, unit), to_next);
    }
  }

  // Whether the sums of the whole panel can stay: all workers are told the same.
  bool sum_up(const Range& panel, const Range& units, const Range& channels, const Worker& worker,
              const PartialScratch& scratch) const {
    const Index unfinished_before = unfinished;
    if (needs_sums) {
      for (Index unit = units.begin; unit < units.end; ++unit) {
        reduce(unit_of(schedule, task.order, panel, unit), scratch);
      }
      wait_for(worker);
    }
    const bool finished = kernels.finish(task, channels);
    if (worker.workers == 1) return finished;
    if (!finished) ++unfinished;
    wait_for(worker);
    return unfinished == unfinished_before;
  }

  void reduce(const Unit& unit, const PartialScratch& scratch) const {
    const Range chunks = chunks_of(task.order, unit.partial);
    for (Index chunk = chunks.begin; chunk < chunks.end; ++chunk) {
      Part part = part_of(unit, chunk);
      part.adds_to_partial = chunk > chunks.begin;
      kernels.reduce(task, part, scratch);
    }
  }

  void write(const Unit& unit, const Index to_next) const {
    const Range chunks = chunks_of(task.order, unit.partial);
    for (Index chunk = chunks.end; chunk-- > chunks.begin;) {
      Part part = part_of(unit, chunk);
      part.to_next = to_next;
      kernels.write(task, part);
    }
  }

  Part part_of(const Unit& unit, const Index chunk) const {
    Part part;
    part.channels = unit.channels;
    part.chunk = chunk % task.order.chunks;
    part.offset = places.offset(chunk / task.order.chunks);
    part.partial = unit.partial;
    return part;
  }
};

template <class Work>
void on_threads(const int threads, const Work& work) {
  if (threads == 1) return work(Worker{});
#pragma omp parallel num_threads(threads)
  work(Worker{omp_get_thread_num(), omp_get_num_threads()});
}

// Of one block.
KernelInfo cut_block(const Problem& problem, const int num_threads, const Ports& ports,
                     const Traffic& traffic, const Machine& machine, const Kernels& kernels) {
  KernelInfo cut;
  cut.order = order_of(problem.geometry, kernels.lanes);
  cut.schedule = schedule_for(cut.order, traffic, machine, num_threads);
  cut.non_temporal =
      traffic.cache_filled > non_temporal_from && may_write_non_temporal(problem, ports, cut.order);
  return cut;
}

// Whether every thread takes groups of its own, and none shares a group with another.
bool groups_apart(const Index groups, const int threads) {
  return threads > 1 && groups >= many_groups * threads;
}

void run_block(const Problem& problem, const int num_threads, const Ports& ports,
               const Traffic& traffic, const Machine& machine) {
  const Kernels& kernels = kernels_for(machine.isa, problem.data, variant_of(problem, ports));
  const Places places(problem.geometry, false);
  const KernelInfo cut = cut_block(problem, num_threads, ports, traffic, machine, kernels);
  Task task = task_for(problem, ports, cut.order, places);
  task.non_temporal = cut.non_temporal;
  task.far = traffic.bytes > static_cast<double>(machine.cache.second_bytes);

  const SummationOrder& order = task.order;
  const Schedule& schedule = cut.schedule;

  Tables& tables = task.workspace.tables;
  const Index pair = Index{2} * order.lanes;
  tables.entries = order.channels;
  Index doubles = scratch_per_plane(order.lanes) * schedule.block;  // a thread's
  Index floats = 0;
  if (order.columns) {
    tables.period =
        order.row * (task.non_temporal ? std::max<Index>(streamed_period / order.row, 1) : 1);
    tables.entries = round_up(tables.period + pair, 2);
    const Index columns = order.repeat > 1 ? order.row : schedule.block * order.inner;
    doubles = scratch_per_column * round_up(columns, pair);
    floats = doubles;
  }
  const Index sums = problem.pass == Pass::apply ? 0 : 2 * order.partials * order.channels;

  const std::array all_tables = {&tables.pivot, &tables.mean,  &tables.scale,
                                 &tables.beta,  &tables.shift, &tables.slope};
  Scratch memory(Scratch::bytes_for<double>(sums) +
                 all_tables.size() * Scratch::bytes_for<float>(tables.entries) +
                 Scratch::bytes_for<double>(schedule.threads * doubles) +
                 Scratch::bytes_for<float>(schedule.threads * floats));
  task.workspace.partials = memory.take<double>(sums);
  for (float** const table : all_tables) *table = memory.take<float>(tables.entries);
  double* const all_doubles = memory.take<double>(schedule.threads * doubles);
  float* const all_floats = memory.take<float>(schedule.threads * floats);

  if (!needs_sums(problem)) std::fill_n(task.workspace.partials, sums, 0.0);
  if (!is_forward(problem)) kernels.prepare(task, {0, order.channels});
  std::atomic<Index> unfinished = 0;
  const BlockRun block{kernels,
                       task,
                       schedule,
                       places,
                       needs_sums(problem),
                       is_forward(problem) && needs_sums(problem),
                       unfinished};
  on_threads(schedule.threads, [&](const Worker& worker) {
    PartialScratch scratch;
    scratch.doubles = all_doubles + worker.index * doubles;
    scratch.floats = all_floats + worker.index * floats;
    block.work(worker, scratch);
  });
}

// An empty part's second pass, as one that has no tensor to write.
Problem of_totals_alone(const Problem& problem) {
  Problem alone = problem;
  alone.geometry = Geometry{1, problem.geometry.statistics(), 1};
  return alone;
}

Ports without_results_of_elements(const Ports& ports) {
  Ports without = ports;
  for (std::size_t i = 0; i < num_ports(Output{}); ++i) {
    const auto port = static_cast<Output>(i);
    if (is_tensor(port)) without.out[port] = nullptr;
  }
  return without;
}

}  // namespace

KernelInfo kernel_info(const Problem& problem, const int num_threads, const Machine& machine) {
  // A run goes by which ports there are, and by where in a cache line they begin.
  alignas(64) static std::byte input, output;
  Ports ports;
  const Signature& signature = signature_of(problem.operation);
  signature.inputs.for_each([&](const Input port) {
    if (!signature.optional.has(port) || problem.optional_tensors.has(port)) {
      ports.in[port] = &input;
    }
  });
  problem.outputs.for_each([&](const Output port) { ports.out[port] = &output; });

  const Traffic traffic = traffic_of(problem, ports, machine.cache);
  const Kernels& kernels = kernels_for(machine.isa, problem.data, variant_of(problem, ports));
  const Index groups = Places(problem.geometry, true).count();
  Problem one = problem;
  one.geometry = without_kept_loops(problem.geometry);
  const int threads = threads_for(problem.geometry.elements(), machine, num_threads);
  const bool apart = groups > 1 && groups_apart(groups, threads);
  KernelInfo cut = cut_block(one, apart ? 1 : num_threads, ports, traffic, machine, kernels);
  cut.groups = groups;
  if (apart) cut.schedule.threads = threads;
  return cut;
}

void run(const Problem& problem, const int num_threads, const Ports& ports,
         const Machine& machine) {
  const Geometry& geometry = problem.geometry;
  if (geometry.elements() == 0) {
    return run(of_totals_alone(problem), num_threads, without_results_of_elements(ports), machine);
  }
  const auto element_bytes = static_cast<Index>(size_of(problem.data));
  const Traffic traffic = traffic_of(problem, ports, machine.cache);
  const Places groups(geometry, true);
  if (groups.count() == 1) return run_block(problem, num_threads, ports, traffic, machine);

  // Groups of channels, each with statistics of its own.
  Problem one = problem;
  one.geometry = without_kept_loops(geometry);
  const auto run_group = [&](const Index group, const int threads) {
    const Ports begin =
        advance(problem, ports, groups.offset(group) * element_bytes, group * geometry.channels);
    run_block(one, threads, begin, traffic, machine);
  };
  const int threads = threads_for(geometry.elements(), machine, num_threads);
  if (!groups_apart(groups.count(), threads)) {
    for (Index group = 0; group < groups.count(); ++group) run_group(group, num_threads);
    return;
  }
  // Every thread has groups of its own. An exception (no memory) must not leave the region.
  std::exception_ptr failure;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (Index group = 0; group < groups.count(); ++group) {
    try {
      run_group(group, 1);
    } catch (...) {
#pragma omp critical
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace onedsl::native
