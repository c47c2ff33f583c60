#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "check.hpp"
#include "layouts.hpp"
#include "native/int_math.hpp"
#include "native/kernels.hpp"
#include "native/run.hpp"
#include "native/schedule.hpp"
#include "native/summation_order.hpp"
#include "tests.hpp"

namespace onedsl::test {
namespace {

using native::Index;
using native::Machine;
using native::Range;
using native::Schedule;
using native::SummationOrder;
using native::Worker;

// ---- Summation order ----

// The summation order depends only on the geometry and the lanes of a vector. If it depended on
// threads or caches, the bits of results would depend on the number of threads.
static_assert(std::is_same_v<decltype(native::order_of), SummationOrder(const Geometry&, int)>);

void check_rows(const SummationOrder& order, const Geometry& geometry) {
  const Index block = geometry.outer * geometry.channels * geometry.inner;
  if (order.columns) {
    check(order.rows * order.row + order.rest == block, "rows of ", geometry);
    check(order.row == order.repeat * order.channels * order.inner, "a row of ", geometry);
    check(order.rest < order.row, "the rest of ", geometry);
    check(order.inner < order.lanes, "columns of ", geometry);
  } else {
    check(order.rows == order.outer * order.segments && order.rest == 0, "rows of ", geometry);
    check(order.segments == 1 || order.rows_together == 1,
          "segments are summed separately: ", geometry);
    check((order.segments - 1) * order.segment < order.inner, "no segment is empty: ", geometry);
    check(order.segments * order.segment >= order.inner, "segments cover a plane: ", geometry);
    // A vector may extend into the next plane, but not beyond it.
    check(order.inner >= order.lanes, "planes of ", geometry);
  }
}

void check_chunks(const SummationOrder& order, const Geometry& geometry) {
  check(order.chunks >= 1 && order.chunk_rows >= 1, "chunks of ", geometry);
  check((order.chunks - 1) * order.chunk_rows < order.rows, "no chunk is empty: ", geometry);
  check(order.chunks * order.chunk_rows >= order.rows, "chunks cover the rows: ", geometry);
}

// ---- Schedule ----

// Check that the numbers of items per worker differ by at most one.
void check_even(const std::vector<Index>& shares, const Geometry& geometry) {
  const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
  check(*most - *least <= 1, "a thread has ", *most, " shares and another ", *least, " of ",
        geometry);
}

// Check that the loops of run() visit each channel of each chunk exactly once.
void check_covered_once(const Schedule& schedule, const SummationOrder& order,
                        const Geometry& geometry) {
  std::vector<int> sums(static_cast<std::size_t>(order.channels * order.chunks), 0);
  std::vector<int> finished(static_cast<std::size_t>(order.channels), 0);
  const Index panels = native::divide_up(order.channels, schedule.panel);
  std::vector<Index> panels_each;
  std::vector<std::vector<Index>> items_each(static_cast<std::size_t>(panels));
  for (Index index = 0; index < schedule.threads; ++index) {
    const Worker worker{index, schedule.threads};
    const Range mine = panels_of(schedule, order, worker);
    panels_each.push_back(mine.end - mine.begin);
    const Worker in_panel = schedule.own_panels ? Worker{} : worker;
    for (Index panel = mine.begin; panel < mine.end; ++panel) {
      const Range channels = channels_of(schedule, order, panel);
      const Range items =
          native::share_of(num_tiles(schedule, order, channels), in_panel.index, in_panel.workers);
      items_each[static_cast<std::size_t>(panel)].push_back(items.end - items.begin);
      for (Index i = items.begin; i < items.end; ++i) {
        const native::Tile tile = tile_of(schedule, order, channels, i);
        check(tile.channels.begin < tile.channels.end, "an empty tile of ", geometry);
        for (Index c = tile.channels.begin; c < tile.channels.end; ++c) {
          ++sums.at(static_cast<std::size_t>(tile.chunk * order.channels + c));
        }
      }
      const Range some =
          native::share_of(channels.end - channels.begin, in_panel.index, in_panel.workers);
      for (Index c = some.begin; c < some.end; ++c) {
        ++finished.at(static_cast<std::size_t>(channels.begin + c));
      }
    }
  }
  const auto once = [](const int times) { return times == 1; };
  check(std::all_of(sums.begin(), sums.end(), once), "a tile is not visited once: ", geometry);
  check(std::all_of(finished.begin(), finished.end(), once),
        "a channel is not finished once: ", geometry);
  check_even(panels_each, geometry);
  for (const std::vector<Index>& items : items_each) check_even(items, geometry);
}

void check_requirements_of_kernels(const Schedule& schedule, const SummationOrder& order,
                                   const Geometry& geometry) {
  check(schedule.block >= 1 && schedule.panel >= schedule.block, "blocks of ", geometry);
  if (order.repeat > 1)
    check(schedule.block == order.channels, "rows of several positions of ", geometry);
  if (order.segments > 1) check(schedule.block == 1, "segments of ", geometry);
  if (!order.columns) {
    const Index doubles = schedule.block * native::scratch_per_plane(order.lanes);
    check(doubles * 8 <= 65536, "a thread's scratch for ", geometry);
  }
}

// Check that the panel that is written and the prefetched one fit the second-level cache.
void check_prefetched(const Schedule& schedule, const SummationOrder& order,
                      const native::Traffic& traffic, const native::Cache& cache,
                      const Geometry& geometry) {
  const Index panel_bytes = schedule.panel * order.outer * order.inner * traffic.summed *
                            static_cast<Index>(size_of(traffic.type));
  check(schedule.own_panels && 2 * panel_bytes <= cache.l2_bytes, "prefetched panels of ",
        geometry);
}

// With 1 MB second-level caches, only operations without a further tensor prefetch.
void test_medium_caches() {
  Machine machine;
  machine.cache = {Index{32} << 20, 8, Index{1} << 20};
  const Geometry geometry{32, 128, Index{28} * 28};
  const SummationOrder order = native::order_of(geometry, 16);
  for (const Index further : {0, 1}) {
    native::Traffic traffic;
    traffic.summed = 2;
    traffic.tensors = traffic.summed + 1 + further;
    traffic.bytes = static_cast<double>(traffic.tensors * geometry.elements()) * 4;
    const Schedule schedule = schedule_for(order, traffic, machine, 2);
    check(schedule.prefetch_next_panel == (further == 0), "prefetching with ", further,
          " further tensors");
  }
}

// Non-temporal stores: from half of the last-level cache on, and with large second-level caches for
// outputs that the caller provides from what the second-level caches of the threads hold.
void test_stores() {
  struct Case {
    Index rows;  // of 64 f32 elements: half a KiB of src and dst
    Index l2_kib;
    int threads;
    bool given;
    bool non_temporal;
  };
  for (const Case& c : {
           Case{8192, 2048, 2, true, false},  // exactly the two second-level caches
           Case{8193, 2048, 2, true, true},
           Case{8193, 2048, 2, false, false},
           Case{8193, 2047, 2, true, false},
           Case{8193, 2048, 3, true, false},
           Case{4096, 2048, 1, true, false},
           Case{4097, 2048, 1, true, true},
           Case{32768, 2048, 2, false, false},  // exactly half of the last-level cache
           Case{32769, 2048, 2, false, true},
           Case{32769, 1024, 2, true, true},
           Case{32769, 2048, 16, true, true},
       }) {
    Machine machine;
    machine.cache = {Index{32} << 20, 8, c.l2_kib << 10};
    Problem problem;
    problem.operation = Operation::forward_training;
    problem.geometry = {c.rows, 64, 1};
    problem.outputs = signature_of(problem.operation).outputs;
    problem.inputs = InputSet(Input::src, Input::mean, Input::variance);
    const Schedule schedule = native::kernel_info(problem, c.threads, c.given, machine).schedule;
    check(schedule.non_temporal == c.non_temporal, c.rows, " rows, ", c.threads,
          " threads, second-level caches of ", c.l2_kib, " KiB", c.given ? ", given" : "");
    check(schedule.out_of_cache == (c.rows > 2 * c.l2_kib), c.rows, " rows out of cache");
  }
}

}  // namespace

// Random geometries, types, machines and numbers of threads.
void test_schedule() {
  test_medium_caches();
  test_stores();
  Random random(3);
  constexpr std::array types = {DataType::f32, DataType::bf16, DataType::f16};
  std::map<std::string, int> seen;
  for (int i = 0; i < 20000; ++i) {
    const Index most = Index{1} << random.between(4, 34);
    const std::optional<Geometry> dense =
        (random.chance(4) ? random_layout(random, most) : random_block(random, most)).geometry();
    if (!dense || dense->channels > 100000) continue;
    const Geometry geometry = *dense;
    Machine machine;
    machine.cache = {Index{1} << random.between(12, 28), random.between(1, 64),
                     Index{1} << random.between(17, 23)};
    machine.min_elements_per_thread = random.chance(2) ? 16384 : random.between(1, 1000);
    const int threads =
        static_cast<int>(random.chance(2) ? random.between(1, 8) : random.between(1, 64));
    const SummationOrder order = native::order_of(geometry, 4 << random.between(0, 2));
    native::Traffic traffic;
    traffic.type = random.choice(types);
    traffic.summed = random.between(1, 3);
    traffic.tensors = traffic.summed + random.between(1, 2);
    traffic.bytes = static_cast<double>(traffic.tensors * geometry.elements()) *
                    static_cast<double>(size_of(traffic.type));
    const Schedule schedule = schedule_for(order, traffic, machine, threads);
    check_rows(order, geometry);
    check_chunks(order, geometry);
    check(schedule.threads >= 1 && schedule.threads <= threads, "threads for ", geometry);
    check_requirements_of_kernels(schedule, order, geometry);
    check_covered_once(schedule, order, geometry);
    if (schedule.prefetch_next_panel) {
      check_prefetched(schedule, order, traffic, machine.cache, geometry);
      ++seen["prefetches"];
    }
    seen["columns"] += order.columns ? 1 : 0;
    seen["segments"] += order.segments > 1 ? 1 : 0;
    seen["chunks"] += order.chunks > 1 ? 1 : 0;
    seen["own panels"] += schedule.own_panels ? 1 : 0;
    seen["several panels"] += schedule.panel < order.channels ? 1 : 0;
    seen["several blocks"] += schedule.block < schedule.panel ? 1 : 0;
    seen["several threads"] += schedule.threads > 1 ? 1 : 0;
  }
  check(seen.size() == 8, "a kind of schedule is missing");
  for (const auto& [kind, times] : seen) {
    check(times > 50, "only ", times, " of the random schedules have ", kind);
  }
}

}  // namespace onedsl::test
