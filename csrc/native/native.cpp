#include "native.hpp"

#include <cpuid.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>

#include "kernels.hpp"

namespace onedsl::native {
namespace {

using Index = std::int64_t;

// ---- The machine ----

enum class Isa { baseline, avx2, avx512 };

Isa isa_cap() {
  const char* value = std::getenv("ONEDSL_MAX_CPU_ISA");
  if (!value) value = std::getenv("ONEDNN_MAX_CPU_ISA");
  std::string name = value ? value : "";
  for (char& letter : name)
    letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  if (name == "SSE41" || name == "AVX") return Isa::baseline;
  if (name.rfind("AVX2", 0) == 0) return Isa::avx2;
  return Isa::avx512;
}

Isa isa() {
  static const Isa best = [] {
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("f16c");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl");
    return std::min(isa_cap(), avx512 ? Isa::avx512 : avx2 ? Isa::avx2 : Isa::baseline);
  }();
  return best;
}

const Kernels& kernels_for(DataType type) {
  switch (isa()) {
    case Isa::avx512: {
      static const bool bf16 = __builtin_cpu_supports("avx512bf16");
      return bf16 && type == DataType::bf16 ? avx512_bf16::kernels(type) : avx512::kernels(type);
    }
    case Isa::avx2:
      return avx2::kernels(type);
    default:
      return baseline::kernels(type);
  }
}

struct Cache {
  Index bytes;
  Index cores;  // that share it
};

// The last cache. The CPU is asked: on some virtual machines sysconf reports many such caches as
// one.
const Cache& last_cache() {
  static const Cache last = [] {
    Cache largest{0, 1};
    for (const unsigned leaf : {0x4u, 0x8000001du})
      for (unsigned index = 0; index < 8; ++index) {
        unsigned a = 0, b = 0, c = 0, d = 0;
        if (!__get_cpuid_count(leaf, index, &a, &b, &c, &d) || (a & 0x1f) == 0) break;
        const Index ways = (b >> 22) + 1;
        const Index partitions = (b >> 12 & 0x3ff) + 1;
        const Index line = (b & 0xfff) + 1;
        const Index bytes = ways * partitions * line * (Index{c} + 1);
        if (bytes > largest.bytes) largest = {bytes, (a >> 14 & 0xfff) + 1};
      }
    return largest.bytes > 0 ? largest : Cache{Index{32} << 20, 8};
  }();
  return last;
}

// ---- Memory for sums and coefficients ----

// Small problems stay on the stack.
class Scratch {
 public:
  explicit Scratch(std::size_t bytes) {
    if (bytes <= sizeof local_) return;
    heap_ = std::make_unique<Line[]>((bytes + sizeof(Line) - 1) / sizeof(Line));
    next_ = heap_[0].bytes;
  }

  template <class T>
  T* take(Index count) {
    T* const taken = reinterpret_cast<T*>(next_);
    next_ += bytes_for<T>(count);
    return taken;
  }

  template <class T>
  static constexpr std::size_t bytes_for(Index count) {
    return (static_cast<std::size_t>(count) * sizeof(T) + sizeof(Line) - 1) & ~(sizeof(Line) - 1);
  }

 private:
  struct alignas(64) Line {
    Line() noexcept {}  // or make_unique would write zeros
    std::byte bytes[64];
  };
  Line local_[160];
  std::unique_ptr<Line[]> heap_;
  std::byte* next_ = local_[0].bytes;
};

constexpr Index scratch_doubles = 8192;  // a thread's: 64 KiB

// ---- How the work is cut ----

constexpr Index divide_up(Index a, Index b) { return (a + b - 1) / b; }
constexpr Index round_up(Index a, Index b) { return divide_up(a, b) * b; }

constexpr Index elements_per_thread = 16384;  // fewer do not pay for another thread
constexpr Index most_partials = 64;           // of a block that is repeated at many places
constexpr Index longest_row = 2048;           // columns: their sums stay in the first two caches

// Nothing in here may depend on the number of threads: it decides what is summed in which order.
void cut(Task& task, const Geometry& geometry, int lanes) {
  const Index position = geometry.channels * geometry.inner;
  task.columns = geometry.inner < lanes;
  task.repeat = 1;
  task.pieces = 1;
  task.piece = geometry.inner;
  if (task.columns) {
    // Pairs of vectors a row, and enough of them.
    Index repeat = 1;
    while (repeat * position % (2 * lanes) != 0) repeat *= 2;
    while (repeat * position < 8 * lanes) repeat *= 2;
    if (repeat * position <= longest_row && repeat <= geometry.outer / 8) task.repeat = repeat;
    task.row = task.repeat * position;
    task.rows = geometry.outer / task.repeat;
    task.rest = geometry.outer % task.repeat * position;
    // Enough chunks for many threads, whose partial sums are few beside the tensor: beginning and
    // ending a chunk costs as much as some tens of rows. A power of two, which most numbers of
    // threads share evenly.
    const Index wanted = std::max<Index>(task.rows / 512, std::min<Index>(task.rows / 128, 16));
    const Index most = std::clamp<Index>(std::min(32768 / task.row, wanted), 1, 256);
    Index chunks = 1;
    while (2 * chunks <= most) chunks *= 2;
    task.chunk_rows = std::max<Index>(divide_up(task.rows, chunks), 1);
    task.chunks = std::max<Index>(divide_up(task.rows, task.chunk_rows), 1);
  } else {
    const Index most = std::max<Index>(geometry.per_block_channel() / 16384, 1);
    const Index chunks = std::clamp<Index>(divide_up(256, geometry.channels), 1, most);
    if (geometry.outer < 4 * chunks && chunks > 1) {
      task.piece = round_up(divide_up(geometry.inner, divide_up(4 * chunks, geometry.outer)), 256);
      task.piece = std::min(task.piece, geometry.inner);
      task.pieces = divide_up(geometry.inner, task.piece);
    }
    task.row = geometry.channels * task.piece;
    task.rest = 0;
    task.rows = geometry.outer * task.pieces;
    task.chunk_rows = divide_up(task.rows, chunks);
    task.chunks = divide_up(task.rows, task.chunk_rows);
  }
}

// A panel of channels is summed, then written. Either every thread has panels of its own, or all
// threads share the blocks and chunks of one panel after the other.
struct Schedule {
  int threads;
  bool shared;
  Index panel;  // channels
  Index block;  // channels
};

Schedule schedule_for(const Task& task, const Geometry& geometry, DataType type, int lanes,
                      int num_threads) {
  const Index elements = geometry.elements();
  const Index channels = geometry.channels;
  const Index size = static_cast<Index>(size_of(type));
  const Index wanted =
      std::clamp<Index>(elements / elements_per_thread, 1, std::max(num_threads, 1));
  Schedule schedule{static_cast<int>(wanted), true, channels, channels};
  const Index threads = wanted;
  if (task.columns) {
    Index block = longest_row / geometry.inner;
    if (task.chunks < threads)
      block = std::min(block, round_up(divide_up(channels * task.chunks, 2 * threads), 64));
    if (block < channels && task.repeat == 1)
      schedule.block = std::max<Index>(block / lanes * lanes, 1);
  } else {
    const Index most = scratch_doubles / scratch_per_plane(lanes);
    // Long stretches of memory matter more than the second cache.
    const Cache& cache = last_cache();
    const Index plane = geometry.inner * size;
    Index block = 131072 / plane;
    if (!task.cached)
      block = std::max(8192 / plane, cache.bytes / (8 * std::min(threads, cache.cores)) /
                                         (geometry.outer * plane));
    if (task.pieces > 1) block = 1;  // pieces of neighbouring planes do not touch
    block = std::clamp<Index>(block, 1, most);
    block = std::min(block, std::max<Index>(channels / (4 * threads), 1));
    schedule.block = block;
    const Index blocks = divide_up(channels, block);
    const Index rounds = divide_up(blocks, threads);
    // Many images of small planes: a channel is pieces far apart. All threads then share what the
    // last cache holds of neighbouring channels, and read longer stretches.
    const Index held = cache.bytes / 2 / (2 * geometry.outer * plane);
    const Index sharing = divide_up(threads, task.chunks);
    const bool apart = !task.cached && task.pieces == 1 && block * plane < 16384 &&
                       held / sharing > block && task.chunks * sharing % threads == 0;
    if (apart) {
      schedule.block = std::min(held / sharing, most);
      schedule.panel = schedule.block * sharing;
      return schedule;
    }
    // Own panels, unless some threads would be idle for a ninth of the time.
    if (rounds * threads * 8 <= blocks * 9) {
      schedule.shared = false;
      schedule.panel = block;
    } else {
      const Index bytes = 2 * geometry.per_block_channel() * size * block;
      schedule.panel = block * std::max<Index>(cache.bytes / 2 / bytes, 1);
    }
  }
  return schedule;
}

// ---- Running ----

struct Team {
  Index index;
  Index size;

  Index begin(Index count) const { return count * index / size; }
  Index end(Index count) const { return count * (index + 1) / size; }
  void wait() const {
    if (size > 1) {
#pragma omp barrier
    }
  }
};

// The places of a geometry's loops of one kind, as offsets in elements from the first.
class Places {
 public:
  Places(const Geometry& geometry, bool kept) {
    for (std::size_t i = 0; i < geometry.num_loops; ++i)
      if (geometry.loops[i].kept == kept) loops_[num_loops_++] = geometry.loops[i];
    count_ = geometry.times(kept);
  }

  Index count() const { return count_; }
  Index offset(Index place) const {
    Index offset = 0;
    for (std::size_t i = num_loops_; i-- > 0; place /= loops_[i].count)
      offset += place % loops_[i].count * loops_[i].stride;
    return offset;
  }

 private:
  std::array<Loop, Geometry::max_loops> loops_ = {};
  std::size_t num_loops_ = 0;
  Index count_ = 1;
};

const void* advance(const void* data, Index bytes) {
  return data == nullptr ? nullptr : static_cast<const std::byte*>(data) + bytes;
}
void* advance(void* data, Index bytes) {
  return data == nullptr ? nullptr : static_cast<std::byte*>(data) + bytes;
}

// A block, with the places that it is repeated at and summed over.
struct Repeated {
  Task task;
  Places places;
  Index size;  // of an element

  // Calls each(task, part) for the chunks, at all places, whose sums go to part.partial.
  template <class Each>
  void for_chunks(Part part, bool backwards, const Each& each) const {
    if (places.count() == 1) return each(task, part);
    const Index all = places.count() * task.chunks;
    const Index begin = all * part.partial / task.partials;
    const Index end = all * (part.partial + 1) / task.partials;
    for (Index i = begin; i < end; ++i) {
      const Index at = backwards ? begin + end - 1 - i : i;
      const Index offset = places.offset(at / task.chunks) * size;
      Task here = task;
      here.src = advance(task.src, offset);
      here.diff_dst = advance(task.diff_dst, offset);
      here.diff_src = advance(task.diff_src, offset);
      part.chunk = at % task.chunks;
      part.more = i > begin;
      each(here, part);
    }
  }
};

void run_panel(const Kernels& kernels, const Repeated& work, const Team& team, Index block,
               Index first_channel, Index last_channel, double* scratch, bool sums) {
  const Task& task = work.task;
  const Index units = divide_up(last_channel - first_channel, block) * task.partials;
  const auto part = [&](Index unit) {
    const Index first = first_channel + unit / task.partials * block;
    const Index partial = unit % task.partials;
    return Part{first, std::min(first + block, last_channel), partial, partial, false};
  };
  if (sums) {
    for (Index unit = team.begin(units); unit < team.end(units); ++unit)
      work.for_chunks(part(unit), false, [&](const Task& here, const Part& chunk) {
        kernels.sums(here, chunk, scratch);
      });
    team.wait();
  }
  const Index channels = last_channel - first_channel;
  kernels.finish(task, first_channel + team.begin(channels), first_channel + team.end(channels));
  team.wait();
  // Backwards: what was read last is still in the caches.
  if (task.diff_src)
    for (Index unit = team.end(units); unit-- > team.begin(units);)
      work.for_chunks(part(unit), true, kernels.write);
}

template <class Body>
void on_threads(int threads, const Body& body) {
  if (threads == 1) return body(Team{0, 1});
#pragma omp parallel num_threads(threads)
  body(Team{omp_get_thread_num(), omp_get_num_threads()});
}

// One block, at all its summed places, of a tensor of so many bytes.
void run_block(const Problem& problem, int num_threads, Index bytes, const Arguments& arguments) {
  const Geometry& geometry = problem.geometry;
  const Kernels& kernels = kernels_for(problem.data);
  const int lanes = kernels.lanes;
  Task task{};
  task.src = arguments.src;
  task.diff_dst = arguments.diff_dst;
  task.diff_src = arguments.diff_src;
  task.mean = arguments.mean;
  task.variance = arguments.variance;
  task.gamma = arguments.gamma;
  task.diff_gamma = arguments.diff_gamma;
  task.diff_beta = arguments.diff_beta;
  task.epsilon = problem.epsilon;
  task.channels = geometry.channels;
  task.inner = geometry.inner;
  task.per_channel = static_cast<double>(geometry.per_statistic());
  task.batch = problem.statistics == Statistics::batch;
  task.cached = 3 * bytes <= last_cache().bytes / 4 * 3;
  // A cold output costs less when it is not first read, well before it is too large for the cache.
  task.streaming = 3 * bytes > last_cache().bytes / 4 && arguments.diff_src != arguments.diff_dst;
  cut(task, geometry, lanes);
  const Schedule schedule = schedule_for(task, geometry, problem.data, lanes, num_threads);

  const bool sums = task.batch || arguments.diff_gamma;
  // Large tensors are written in runs that end with the table.
  task.period = task.row * (task.streaming ? std::max<Index>(512 / task.row, 1) : 1);
  const Index entries = task.columns ? round_up(task.period + 2 * lanes, 2) : geometry.channels;
  task.entries = entries;
  const Places places(geometry, false);
  task.partials =
      places.count() == 1 ? task.chunks : std::min(places.count() * task.chunks, most_partials);
  const Index partials = 2 * task.partials * geometry.channels;
  const Index own =
      task.columns
          ? scratch_per_column *
                round_up(task.repeat > 1 ? task.row : schedule.block * geometry.inner, 2 * lanes)
          : scratch_per_plane(lanes) * schedule.block;
  Scratch scratch(Scratch::bytes_for<double>(partials) + 4 * Scratch::bytes_for<float>(entries) +
                  static_cast<std::size_t>(schedule.threads) * Scratch::bytes_for<double>(own));
  task.partial = scratch.take<double>(partials);
  if (!sums) std::fill_n(task.partial, partials, 0.0);
  task.table_mean = scratch.take<float>(entries);
  task.scale = scratch.take<float>(entries);
  task.shift = scratch.take<float>(entries);
  task.slope = scratch.take<float>(entries);
  double* const each = scratch.take<double>(0);
  const Index stride = static_cast<Index>(Scratch::bytes_for<double>(own) / sizeof(double));
  kernels.fill_pivot(task);
  const Repeated work{task, places, static_cast<Index>(size_of(problem.data))};

  on_threads(schedule.threads, [&](const Team& all) {
    double* const mine = each + all.index * stride;
    const Index panels = divide_up(geometry.channels, schedule.panel);
    const Index first = schedule.shared ? 0 : all.begin(panels);
    const Index last = schedule.shared ? panels : all.end(panels);
    for (Index panel = first; panel < last; ++panel) {
      const Index channel = panel * schedule.panel;
      run_panel(kernels, work, schedule.shared ? all : Team{0, 1}, schedule.block, channel,
                std::min(channel + schedule.panel, geometry.channels), mine, sums);
    }
    if (task.streaming) kernels.fence();
  });
}

}  // namespace

void run(const Problem& problem, int num_threads, const Arguments& arguments) {
  const Geometry& geometry = problem.geometry;
  const Index size = static_cast<Index>(size_of(problem.data));
  const Index bytes = geometry.elements() * size;
  const Places groups(geometry, true);
  if (groups.count() == 1) return run_block(problem, num_threads, bytes, arguments);

  Problem block = problem;
  block.geometry.num_loops = 0;
  for (std::size_t i = 0; i < geometry.num_loops; ++i)
    if (!geometry.loops[i].kept)
      block.geometry.loops[block.geometry.num_loops++] = geometry.loops[i];
  const auto run_group = [&](Index group, int threads) {
    const Index offset = groups.offset(group) * size;
    const Index statistic = group * geometry.channels * static_cast<Index>(sizeof(float));
    const auto statistics = [&](const float* all) {
      return static_cast<const float*>(advance(static_cast<const void*>(all), statistic));
    };
    const auto sums = [&](float* all) {
      return static_cast<float*>(advance(static_cast<void*>(all), statistic));
    };
    run_block(block, threads, bytes,
              {advance(arguments.src, offset), advance(arguments.diff_dst, offset),
               statistics(arguments.mean), statistics(arguments.variance),
               statistics(arguments.gamma), advance(arguments.diff_src, offset),
               sums(arguments.diff_gamma), sums(arguments.diff_beta)});
  };
  const Index threads =
      std::clamp<Index>(geometry.elements() / elements_per_thread, 1, std::max(num_threads, 1));
  if (threads == 1 || groups.count() < 4 * threads) {
    for (Index group = 0; group < groups.count(); ++group) run_group(group, num_threads);
    return;
  }
  // Many groups: every thread has its own. An exception (no memory) must not leave the region.
  std::exception_ptr failure;
#pragma omp parallel for num_threads(static_cast<int>(threads)) schedule(static)
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

std::int64_t last_cache_bytes() { return last_cache().bytes; }

const char* isa_name() {
  switch (isa()) {
    case Isa::avx512:
      return "avx512";
    case Isa::avx2:
      return "avx2";
    default:
      return "baseline";
  }
}

}  // namespace onedsl::native
