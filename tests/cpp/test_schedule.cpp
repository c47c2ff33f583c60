#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "check.hpp"
#include "layouts.hpp"
#include "native/kernels/kernels.hpp"
#include "native/plan/int_math.hpp"
#include "native/plan/order.hpp"
#include "native/plan/schedule.hpp"
#include "native/run.hpp"
#include "tests.hpp"

namespace onedsl::test {
namespace {

using native::Index;
using native::Machine;
using native::Range;
using native::Schedule;
using native::SummationOrder;

// ---- Summation order ----

// The summation order depends only on the geometry and the lanes of a vector. If it depended on
// threads or caches, the bits of results would depend on the number of threads.
static_assert(std::is_same_v<decltype(native::order_of), SummationOrder(const Geometry&, int)>);

void check_rows(const SummationOrder& order, const Geometry& geometry) {
  const Index elements = geometry.outer * geometry.channels * geometry.inner;
  if (order.columns) {
    check(order.rows * order.row + order.rest == elements, "rows of ", geometry);
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

// Count each element's unit of a range.
void count(std::vector<int>& times, const Index first, const Range& range) {
  for (Index i = range.begin; i < range.end; ++i) ++times.at(static_cast<std::size_t>(first + i));
}

// Check that the loops of a run sum and write each channel of each row once, and finish each
// channel once.
void check_covered_once(const Schedule& schedule, const SummationOrder& order,
                        const Geometry& geometry) {
  std::vector<int> sums(static_cast<std::size_t>(order.channels * order.chunks), 0);
  std::vector<int> finished(static_cast<std::size_t>(order.channels), 0);
  const bool counts_rows = order.channels * order.rows < 1000000;
  std::vector<int> written(static_cast<std::size_t>(counts_rows ? order.channels * order.rows : 0));
  const auto visit = [&](const Range& panel, const Worker& worker) {
    count(finished, 0, worker.workers == 1 ? panel : finished_channels(panel, worker));
    native::for_summed_tiles(schedule, order, panel, worker, [&](const native::Tile& tile) {
      const Range& channels = tile.channels;
      check(channels.begin < channels.end && channels.end - channels.begin <= schedule.block,
            "a tile of ", geometry);
      check(tile.rows.begin == rows_of(order, tile.chunk).begin &&
                tile.rows.end == rows_of(order, tile.chunk).end,
            "the rows of a tile of ", geometry);
      count(sums, tile.chunk * order.channels, channels);
    });
    native::for_written_tiles(schedule, order, panel, worker, [&](const native::Tile& tile) {
      check(tile.rows.begin < tile.rows.end, "a written tile of ", geometry);
      if (order.repeat > 1) {
        check(tile.channels.end == order.channels, "a written row of ", geometry);
      }
      for (Index row = tile.rows.begin; counts_rows && row < tile.rows.end; ++row) {
        count(written, row * order.channels, tile.channels);
      }
    });
  };
  for (Index index = 0; index < schedule.workers; ++index) {
    const Worker worker{index, schedule.workers};
    const Range own = own_channels(schedule, worker);
    for (Index c = own.begin; c < own.end; c += schedule.block) {
      visit({c, std::min(c + schedule.block, own.end)}, {});
    }
    for (Index panel = 0; panel < num_shared_panels(schedule, order); ++panel) {
      visit(shared_panel(schedule, order, panel), worker);
    }
  }
  const auto once = [](const std::vector<int>& all) {
    return std::all_of(all.begin(), all.end(), [](const int times) { return times == 1; });
  };
  check(once(sums), "a tile is not summed once: ", geometry);
  check(once(finished), "a channel is not finished once: ", geometry);
  check(once(written), "a row is not written once: ", geometry);
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
  const Index panel_bytes = schedule.block * order.outer * order.inner * traffic.reduced *
                            static_cast<Index>(size_of(traffic.type));
  check(schedule.own == order.channels && 2 * panel_bytes <= cache.l2_bytes,
        "prefetched panels of ", geometry);
}

// With 1 MB second-level caches, only operations without a further tensor prefetch.
void test_medium_caches() {
  Machine machine;
  machine.cache = {Index{32} << 20, 8, Index{1} << 20};
  const Geometry geometry{32, 128, Index{28} * 28};
  const SummationOrder order = native::order_of(geometry, 16);
  for (const Index further : {0, 1}) {
    native::Traffic traffic;
    traffic.reduced = 2;
    traffic.tensors = traffic.applied = traffic.reduced + 1 + further;
    traffic.bytes = static_cast<double>(traffic.tensors * geometry.elements()) * 4;
    const Schedule schedule = schedule_for(order, traffic, machine, 2);
    check(schedule.prefetch_next_panel == (further == 0), "prefetching with ", further,
          " further tensors");
  }
}

// Non-temporal stores: beyond the last-level cache. For outputs that the caller provides, beyond
// half of it, and with large second-level caches beyond those of the threads.
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
           Case{65536, 2048, 2, false, false},  // exactly the last-level cache
           Case{65537, 2048, 2, false, true},
           Case{65537, 1024, 2, false, true},
           Case{32768, 1024, 2, true, false},  // exactly half of it
           Case{32769, 1024, 2, true, true},
           Case{32769, 2048, 16, true, true},
       }) {
    Machine machine;
    machine.cache = {Index{32} << 20, 8, c.l2_kib << 10};
    OpConfig config;
    config.operation = Operation::forward_training;
    Call call(config);
    call.geometry = {c.rows, 64, 1};
    call.given = InputSet(Input::src, Input::mean, Input::variance);
    const Schedule schedule = native::kernel_info(call, c.threads, c.given, machine).schedule;
    check(schedule.non_temporal == c.non_temporal, c.rows, " rows, ", c.threads,
          " threads, second-level caches of ", c.l2_kib, " KiB", c.given ? ", given" : "");
    check(schedule.exceeds_l2 == (c.rows > 2 * c.l2_kib), c.rows, " rows out of cache");
  }
}

// Work for every thread, whatever their number: layers of ResNet-50 and MobileNetV2 with three
// million elements and more.
void test_busy_share() {
  const std::map<Index, std::vector<Index>> layers = {
      {112, {16, 32, 64, 96}},
      {56, {24, 64, 96, 128, 144, 256}},
      {28, {32, 128, 144, 192, 256, 512}},
      {14, {256, 384, 512, 576, 1024}},
      {7, {2048}},
  };
  constexpr std::array kib_of_l2 = {512, 1024, 2048};
  for (int threads = 2; threads <= 128; ++threads) {
    double sum = 0;
    int count = 0;
    double least = 1;
    for (const auto& [size, all_channels] : layers) {
      for (const Index channels : all_channels) {
        for (const Index batch : {8, 32}) {
          const Index elements = batch * size * size * channels;
          if (elements < 3000000) continue;
          for (const bool planes : {false, true}) {
            for (const DataType type : {DataType::f32, DataType::bf16}) {
              for (const Index kib : kib_of_l2) {
                Machine machine;
                machine.cache = {Index{32} << 20, 8, kib << 10};
                const Geometry geometry = planes ? Geometry{batch, channels, size * size}
                                                 : Geometry{batch * size * size, channels, 1};
                native::Traffic traffic;
                traffic.type = type;
                traffic.reduced = 2;
                traffic.tensors = traffic.applied = 3;
                traffic.bytes =
                    static_cast<double>(3 * elements) * static_cast<double>(size_of(type));
                const SummationOrder order = native::order_of(geometry, 16);
                const Schedule schedule = schedule_for(order, traffic, machine, threads);
                const double share = busy_share(schedule, order, traffic, threads);
                sum += share;
                ++count;
                least = std::min(least, share);
              }
            }
          }
        }
      }
    }
    check(sum / count > (threads <= 64 ? 0.85 : 0.78), threads, " threads are busy for ",
          sum / count, " of the time");
    check(least > (threads <= 16   ? 0.75
                   : threads <= 64 ? 0.6
                                   : 0.4),
          threads, " threads are busy for ", least, " of the time");
  }
}

}  // namespace

// Random geometries, types, machines and numbers of threads.
void test_schedule() {
  test_medium_caches();
  test_stores();
  test_busy_share();
  Random random(3);
  constexpr std::array types = {DataType::f32, DataType::bf16, DataType::f16};
  std::map<std::string, int> seen;
  for (int i = 0; i < 20000; ++i) {
    const Index most = Index{1} << random.between(4, 34);
    const std::optional<Geometry> dense =
        (random.chance(4) ? random_layout(random, most) : random_nxc_or_ncx(random, most))
            .geometry();
    if (!dense || dense->channels > 100000) continue;
    const Geometry geometry = *dense;
    Machine machine;
    machine.cache = {Index{1} << random.between(12, 28), random.between(1, 64),
                     Index{1} << random.between(17, 23)};
    if (random.chance(2)) machine.parallel_from = machine.parallel_from_per_thread = 0;
    if (random.chance(2)) machine.min_elements_per_worker = random.between(1, 1000);
    const int threads =
        static_cast<int>(random.chance(2) ? random.between(1, 8) : random.between(1, 64));
    const SummationOrder order = native::order_of(geometry, 4 << random.between(0, 2));
    native::Traffic traffic;
    traffic.type = random.choice(types);
    traffic.reduced = random.between(0, 3);
    traffic.tensors = traffic.applied = traffic.reduced + random.between(1, 2);
    traffic.bytes = static_cast<double>(traffic.tensors * geometry.elements()) *
                    static_cast<double>(size_of(traffic.type));
    const Schedule schedule = schedule_for(order, traffic, machine, threads);
    check_rows(order, geometry);
    check_chunks(order, geometry);
    check(schedule.workers >= 1 && schedule.workers <= threads, "workers for ", geometry);
    const double busy = busy_share(schedule, order, traffic, threads);
    check(busy > 0 && busy < 1.001, "a busy share of ", busy, " for ", geometry);
    check_requirements_of_kernels(schedule, order, geometry);
    check_covered_once(schedule, order, geometry);
    if (schedule.prefetch_next_panel) {
      check_prefetched(schedule, order, traffic, machine.cache, geometry);
      ++seen["prefetches"];
    }
    seen["columns"] += order.columns ? 1 : 0;
    seen["segments"] += order.segments > 1 ? 1 : 0;
    seen["chunks"] += order.chunks > 1 ? 1 : 0;
    const Index shared_panels = num_shared_panels(schedule, order);
    seen["own channels"] += schedule.own > 0 ? 1 : 0;
    seen["own and shared channels"] += schedule.own > 0 && shared_panels > 0 ? 1 : 0;
    seen["several shared panels"] += shared_panels > 1 ? 1 : 0;
    seen["several blocks"] += schedule.block < order.channels ? 1 : 0;
    seen["several workers"] += schedule.workers > 1 ? 1 : 0;
  }
  check(seen.size() == 9, "a kind of schedule is missing");
  for (const auto& [kind, times] : seen) {
    check(times >= 10, "only ", times, " of the random schedules have ", kind);
  }
}

}  // namespace onedsl::test
