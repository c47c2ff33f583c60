#include "run.hpp"

#include <omp.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <exception>

#include "kernels.hpp"
#include "order.hpp"
#include "places.hpp"
#include "schedule.hpp"
#include "scratch.hpp"
#include "whole.hpp"

namespace onedsl::native {
namespace {

// A cold output costs less when it is not first read, well before the tensors are too large for the
// last cache: from so much of it on.
constexpr double streams_from = 0.25;
// A run of tables that stream has so many elements, where rows are shorter.
constexpr Index streamed_period = 512;
// Groups for each thread, from which on no group is shared by threads.
constexpr Index many_groups = 4;

const Kernels& kernels_for(const Isa isa, const DataType type) {
  switch (isa) {
    case Isa::avx512_bf16:
      return avx512_bf16::kernels(type);
    case Isa::avx512:
      return avx512::kernels(type);
    case Isa::avx2:
      return avx2::kernels(type);
    case Isa::baseline:
      break;
  }
  return baseline::kernels(type);
}

void wait_for(const Worker& worker) {
  if (worker.workers > 1) {
#pragma omp barrier
  }
}

Tensors tensors_of(const Ports& ports) {
  const auto statistic = [&](const Input port) {
    return static_cast<const float*>(ports.in[port]);
  };
  const auto sum = [&](const Output port) { return static_cast<float*>(ports.out[port]); };
  Tensors tensors;
  tensors.src = ports.in[Input::src];
  tensors.diff_dst = ports.in[Input::diff_dst];
  tensors.mean = statistic(Input::mean);
  tensors.variance = statistic(Input::variance);
  tensors.gamma = statistic(Input::gamma);
  tensors.diff_src = ports.out[Output::diff_src];
  tensors.diff_gamma = sum(Output::diff_gamma);
  tensors.diff_beta = sum(Output::diff_beta);
  return tensors;
}

// What begins so many bytes, and so many statistics, further on.
Tensors advance(const Tensors& tensors, const Index bytes, const Index statistics) {
  const auto input = [&](const void* const p) { return static_cast<const std::byte*>(p) + bytes; };
  const auto per_channel = [&](auto* const p) { return p != nullptr ? p + statistics : nullptr; };
  Tensors further;
  further.src = input(tensors.src);
  further.diff_dst = input(tensors.diff_dst);
  further.mean = per_channel(tensors.mean);
  further.variance = per_channel(tensors.variance);
  further.gamma = per_channel(tensors.gamma);
  if (tensors.diff_src != nullptr) {
    further.diff_src = static_cast<std::byte*>(tensors.diff_src) + bytes;
  }
  further.diff_gamma = per_channel(tensors.diff_gamma);
  further.diff_beta = per_channel(tensors.diff_beta);
  return further;
}

bool needs_sums(const Problem& problem) {
  return problem.statistics == Statistics::batch || problem.wanted.has(Output::diff_gamma) ||
         problem.wanted.has(Output::diff_beta);
}

// One block, at all the places that it is summed over.
struct BlockRun {
  const Kernels& kernels;
  const Task& task;
  const Schedule& schedule;
  const Places& places;
  bool needs_sums;

  // One thread's part in it.
  void work(const Worker& worker, const PartialScratch& scratch) const {
    const Range panels = panels_of(schedule, task.order, worker);
    for (Index panel = panels.begin; panel < panels.end; ++panel) {
      const Range channels = channels_of(schedule, task.order, panel);
      work_on_panel(channels, schedule.own_panels ? Worker{} : worker, scratch);
    }
    if (task.streaming) kernels.fence();
  }

  void work_on_panel(const Range& panel, const Worker& worker,
                     const PartialScratch& scratch) const {
    const Range units =
        share_of(units_in(schedule, task.order, panel), worker.index, worker.workers);
    if (needs_sums) {
      for (Index unit = units.begin; unit < units.end; ++unit) {
        reduce(unit_of(schedule, task.order, panel, unit), scratch);
      }
      wait_for(worker);
    }
    const Range channels = share_of(panel.end - panel.begin, worker.index, worker.workers);
    kernels.finish(task, {panel.begin + channels.begin, panel.begin + channels.end});
    wait_for(worker);
    if (task.tensors.diff_src == nullptr) return;
    // Backwards: what was read last is still in the caches.
    for (Index unit = units.end; unit-- > units.begin;) {
      write(unit_of(schedule, task.order, panel, unit));
    }
  }

  void reduce(const Unit& unit, const PartialScratch& scratch) const {
    const Range chunks = chunks_of(task.order, unit.partial);
    for (Index chunk = chunks.begin; chunk < chunks.end; ++chunk) {
      Part part = part_of(unit, chunk);
      part.adds_to_partial = chunk > chunks.begin;
      kernels.reduce(task, part, scratch);
    }
  }

  void write(const Unit& unit) const {
    const Range chunks = chunks_of(task.order, unit.partial);
    for (Index chunk = chunks.end; chunk-- > chunks.begin;) {
      kernels.write(task, part_of(unit, chunk));
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

void run_block(const Problem& problem, const int num_threads, const Tensors& tensors,
               const double filled, const Machine& machine) {
  const Kernels& kernels = kernels_for(machine.isa, problem.data);
  Task task;
  task.tensors = tensors;
  task.formula.epsilon = problem.attributes.epsilon;
  task.formula.spread = problem.spread;
  task.formula.statistics = problem.statistics;
  task.formula.per_statistic = static_cast<double>(problem.geometry.per_statistic());
  task.order = order_of(problem.geometry, kernels.lanes);
  task.streaming = filled > streams_from && tensors.diff_src != tensors.diff_dst;

  const Order& order = task.order;
  const Schedule schedule = schedule_for(order, problem.data, filled, machine, num_threads);

  Tables& tables = task.workspace.tables;
  const Index pair = Index{2} * order.lanes;
  tables.entries = order.channels;
  Index doubles = scratch_per_plane(order.lanes) * schedule.block;  // a thread's
  Index floats = 0;
  if (order.columns) {
    tables.period =
        order.row * (task.streaming ? std::max<Index>(streamed_period / order.row, 1) : 1);
    tables.entries = round_up(tables.period + pair, 2);
    const Index columns = order.repeat > 1 ? order.row : schedule.block * order.inner;
    doubles = scratch_per_column * round_up(columns, pair);
    floats = doubles;
  }
  const Index sums = 2 * order.partials * order.channels;

  const std::array all_tables = {&tables.pivot, &tables.mean, &tables.scale, &tables.shift,
                                 &tables.slope};
  Scratch memory(Scratch::bytes_for<double>(sums) +
                 all_tables.size() * Scratch::bytes_for<float>(tables.entries) +
                 Scratch::bytes_for<double>(schedule.threads * doubles) +
                 Scratch::bytes_for<float>(schedule.threads * floats));
  task.workspace.partials = memory.take<double>(sums);
  for (float** const table : all_tables) *table = memory.take<float>(tables.entries);
  double* const all_doubles = memory.take<double>(schedule.threads * doubles);
  float* const all_floats = memory.take<float>(schedule.threads * floats);

  if (!needs_sums(problem)) std::fill_n(task.workspace.partials, sums, 0.0);
  kernels.fill_pivots(task);
  const Places places(problem.geometry, false);
  const BlockRun block{kernels, task, schedule, places, needs_sums(problem)};
  on_threads(schedule.threads, [&](const Worker& worker) {
    PartialScratch scratch;
    scratch.doubles = all_doubles + worker.index * doubles;
    scratch.floats = all_floats + worker.index * floats;
    block.work(worker, scratch);
  });
}

}  // namespace

void run(const Problem& problem, const int num_threads, const Ports& ports,
         const Machine& machine) {
  const Geometry& geometry = problem.geometry;
  const Tensors tensors = tensors_of(ports);
  const auto element_bytes = static_cast<Index>(size_of(problem.data));
  const double filled = cache_filled(geometry.elements() * element_bytes, machine.cache);
  const Places groups(geometry, true);
  if (groups.count() == 1) return run_block(problem, num_threads, tensors, filled, machine);

  // Groups of channels, each with statistics of its own.
  Problem one = problem;
  one.geometry = without_kept_loops(geometry);
  const auto run_group = [&](const Index group, const int threads) {
    const Tensors begin =
        advance(tensors, groups.offset(group) * element_bytes, group * geometry.channels);
    run_block(one, threads, begin, filled, machine);
  };
  const int threads = threads_for(geometry.elements(), machine, num_threads);
  if (threads == 1 || groups.count() < many_groups * threads) {
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
