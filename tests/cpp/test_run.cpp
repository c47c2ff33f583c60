#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "check.hpp"
#include "core/narrow.hpp"
#include "core/ports.hpp"
#include "core/problem.hpp"
#include "isas.hpp"
#include "layouts.hpp"
#include "native/run.hpp"
#include "tests.hpp"

namespace onedsl::test {
namespace {

using native::Isa;
using native::Machine;

constexpr std::array types = {DataType::f32, DataType::bf16, DataType::f16};
constexpr OutputSet all_outputs(Output::diff_src, Output::diff_gamma, Output::diff_beta);

double value_of(const DataType type, const std::byte* const at) {
  if (type == DataType::f32) {
    float value = 0;
    std::memcpy(&value, at, sizeof value);
    return static_cast<double>(value);
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return static_cast<double>(type == DataType::bf16 ? widen_bf16(bits) : widen_f16(bits));
}

void put_value(const DataType type, std::byte* const at, const double value) {
  const auto narrow = static_cast<float>(value);
  if (type == DataType::f32) {
    std::memcpy(at, &narrow, sizeof narrow);
    return;
  }
  const std::uint16_t bits = type == DataType::bf16 ? narrow_bf16(narrow) : narrow_f16(narrow);
  std::memcpy(at, &bits, sizeof bits);
}

// A tensor that begins `shift` elements past a cache line, with bytes on either side that nobody
// may touch.
class Tensor {
 public:
  Tensor(const DataType type, const std::int64_t count, const std::int64_t shift)
      : type_(type),
        size_(size_of(type)),
        count_(static_cast<std::size_t>(count)),
        memory_(count_ * size_ + 4 * line, guard) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    begin_ = line + (line - address % line) + static_cast<std::size_t>(shift) * size_;
  }

  std::byte* data() { return memory_.data() + begin_; }
  const std::byte* data() const { return memory_.data() + begin_; }
  double operator[](const std::size_t i) const { return value_of(type_, data() + i * size_); }
  void set(const std::size_t i, const double value) { put_value(type_, data() + i * size_, value); }
  void copy_from(const Tensor& other) { std::memcpy(data(), other.data(), count_ * size_); }

  bool same_bits(const Tensor& other) const {
    return std::memcmp(data(), other.data(), count_ * size_) == 0;
  }
  bool guards_stand() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      const bool outside = i < begin_ || i >= begin_ + count_ * size_;
      if (outside && memory_[i] != guard) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t line = 64;
  static constexpr std::byte guard{0xa5};
  DataType type_;
  std::size_t size_;
  std::size_t count_;
  std::vector<std::byte> memory_;
  std::size_t begin_ = 0;
};

struct Inputs {
  Layout layout;
  Problem problem;
  Tensor src, diff_dst, mean, variance, gamma;
  bool has_gamma;
};

struct Results {
  Tensor diff_src, diff_gamma, diff_beta;

  bool same_bits(const Results& other) const {
    return diff_src.same_bits(other.diff_src) && diff_gamma.same_bits(other.diff_gamma) &&
           diff_beta.same_bits(other.diff_beta);
  }
};

std::ostream& operator<<(std::ostream& out, const Inputs& inputs) {
  constexpr const char* names[] = {"f32", "bf16", "f16"};
  return out << names[static_cast<int>(inputs.problem.data)] << " "
             << (inputs.problem.statistics == Statistics::batch ? "batch " : "frozen ")
             << inputs.layout;
}

Inputs random_inputs(Random& random, const Layout& layout, const Geometry& geometry) {
  Problem problem;
  problem.geometry = geometry;
  problem.data = random.of(types);
  problem.statistics = random.chance(4) ? Statistics::frozen : Statistics::batch;
  problem.spread = random.chance(4) ? Spread::inverse_deviation : Spread::variance;
  problem.attributes.epsilon = 1e-3;
  problem.wanted = random.chance(8) ? OutputSet(Output::diff_src) : all_outputs;
  const auto tensor = [&](const DataType type, const std::int64_t count) {
    return Tensor(type, count, random.chance(2) ? 0 : random.between(1, 15));
  };
  const std::int64_t elements = geometry.elements();
  const std::int64_t statistics = geometry.statistics();
  Inputs inputs{layout,
                problem,
                tensor(problem.data, elements),
                tensor(problem.data, elements),
                tensor(DataType::f32, statistics),
                tensor(DataType::f32, statistics),
                tensor(DataType::f32, statistics),
                !random.chance(4)};
  for (std::size_t c = 0; c < static_cast<std::size_t>(statistics); ++c) {
    inputs.mean.set(c, random.real());
    inputs.variance.set(c, 1.5 + random.real());
    inputs.gamma.set(c, random.real());
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(elements); ++i) {
    inputs.src.set(i, 3 * random.real());
    inputs.diff_dst.set(i, random.real());
  }
  return inputs;
}

struct Run {
  Machine machine;
  int threads = 1;
  bool in_place = false;
  std::int64_t shift = 0;
};

std::ostream& operator<<(std::ostream& out, const Run& run) {
  return out << name_of(run.machine.isa) << ", " << run.threads << " threads of "
             << run.machine.elements_per_thread << " elements, cache of " << run.machine.cache.bytes
             << " bytes for " << run.machine.cache.cores << " cores"
             << (run.in_place ? ", in place" : "") << ", shifted by " << run.shift;
}

Results results_of(const Inputs& inputs, const Run& run) {
  const Geometry& geometry = inputs.problem.geometry;
  Results results{Tensor(inputs.problem.data, geometry.elements(), run.shift),
                  Tensor(DataType::f32, geometry.statistics(), run.shift),
                  Tensor(DataType::f32, geometry.statistics(), run.shift)};
  if (run.in_place) results.diff_src.copy_from(inputs.diff_dst);
  Ports ports;
  ports.in[Input::src] = inputs.src.data();
  ports.in[Input::diff_dst] = run.in_place ? results.diff_src.data() : inputs.diff_dst.data();
  ports.in[Input::mean] = inputs.mean.data();
  ports.in[Input::variance] = inputs.variance.data();
  if (inputs.has_gamma) ports.in[Input::gamma] = inputs.gamma.data();
  const OutputSet wanted = inputs.problem.wanted;
  if (wanted.has(Output::diff_src)) ports.out[Output::diff_src] = results.diff_src.data();
  if (wanted.has(Output::diff_gamma)) ports.out[Output::diff_gamma] = results.diff_gamma.data();
  if (wanted.has(Output::diff_beta)) ports.out[Output::diff_beta] = results.diff_beta.data();
  native::run(inputs.problem, run.threads, ports, run.machine);
  check(results.diff_src.guards_stand() && results.diff_gamma.guards_stand() &&
            results.diff_beta.guards_stand(),
        "written outside of the outputs: ", inputs, " on ", run);
  return results;
}

// ---- Accuracy: against the formulas in f64 ----

// How far off a sum or an element may be, relative to the sum of its terms' magnitudes.
double tolerance(const DataType type) {
  switch (type) {
    case DataType::bf16:
      return 1.0 / 128;
    case DataType::f16:
      return 1.0 / 1024;
    case DataType::f32:
      break;
  }
  return 1e-6;
}

void check_accuracy(const Inputs& inputs, const Results& results, const Run& run) {
  const Problem& problem = inputs.problem;
  const std::vector<std::int64_t> statistics = inputs.layout.statistics();
  const auto channels = static_cast<std::size_t>(problem.geometry.statistics());
  const auto count = static_cast<double>(problem.geometry.per_statistic());
  std::vector<double> r(channels);
  for (std::size_t c = 0; c < channels; ++c) {
    r[c] = problem.spread == Spread::variance
               ? 1 / std::sqrt(inputs.variance[c] + problem.attributes.epsilon)
               : inputs.variance[c];
  }
  const auto normalized = [&](const std::size_t i, const std::size_t c) {
    return (inputs.src[i] - inputs.mean[c]) * r[c];
  };
  std::vector<double> diff_gamma(channels), diff_beta(channels), terms(channels), ones(channels);
  for (std::size_t i = 0; i < statistics.size(); ++i) {
    const auto c = static_cast<std::size_t>(statistics[i]);
    diff_gamma[c] += inputs.diff_dst[i] * normalized(i, c);
    diff_beta[c] += inputs.diff_dst[i];
    terms[c] += std::abs(inputs.diff_dst[i] * normalized(i, c));
    ones[c] += std::abs(inputs.diff_dst[i]);
  }
  if (problem.wanted.has(Output::diff_gamma)) {
    for (std::size_t c = 0; c < channels; ++c) {
      check(std::abs(results.diff_gamma[c] - diff_gamma[c]) <= 1e-6 * terms[c], "diff_gamma[", c,
            "] is ", results.diff_gamma[c], ", not ", diff_gamma[c], ": ", inputs, " on ", run);
      check(std::abs(results.diff_beta[c] - diff_beta[c]) <= 1e-6 * ones[c], "diff_beta[", c,
            "] is ", results.diff_beta[c], ", not ", diff_beta[c], ": ", inputs, " on ", run);
    }
  }
  for (std::size_t i = 0; i < statistics.size(); ++i) {
    const auto c = static_cast<std::size_t>(statistics[i]);
    const double scale = (inputs.has_gamma ? inputs.gamma[c] : 1) * r[c];
    double gradient = inputs.diff_dst[i];
    double magnitude = std::abs(gradient);
    if (problem.statistics == Statistics::batch) {
      gradient -= diff_beta[c] / count + normalized(i, c) * diff_gamma[c] / count;
      magnitude += (ones[c] + std::abs(normalized(i, c)) * terms[c]) / count;
    }
    // Below the least normal number of the type, its last place is what counts.
    const double subnormal = problem.data == DataType::f16 ? 0x1p-24 : 0;
    const double allowed =
        tolerance(problem.data) * magnitude * std::abs(scale) + subnormal + 1e-30;
    check(std::abs(results.diff_src[i] - scale * gradient) <= allowed, "diff_src[", i, "] is ",
          results.diff_src[i], ", not ", scale * gradient, ": ", inputs, " on ", run);
  }
}

// ---- Bits ----

// The caches decide what is streamed and how the work is cut: small ones make small problems large.
Run random_run(Random& random, const Isa isa) {
  constexpr std::array threads = {1, 2, 3, 4, 7, 16};
  Run run;
  run.machine.isa = isa;
  run.machine.cache = {std::int64_t{1} << random.between(10, 26), random.between(1, 8)};
  run.machine.elements_per_thread = random.of_any_size(16384);
  run.threads = random.of(threads);
  run.in_place = random.chance(3);
  run.shift = random.chance(2) ? 0 : random.between(1, 15);
  return run;
}

Run plain_run(const Isa isa) {
  Run run;
  run.machine.isa = isa;
  run.machine.cache = {std::int64_t{1} << 25, 8};
  return run;
}

void check_same_bits(const Inputs& inputs, const Results& expected, const Run& run) {
  check(results_of(inputs, run).same_bits(expected), "other bits: ", inputs, " on ", run);
}

// Shapes at which the bits did depend on the number of threads, with that number.
void test_shapes_that_differed() {
  struct Shape {
    std::int64_t outer, channels;
    int threads;
  };
  Random random(4);
  for (const Shape& shape : {Shape{120, 512, 2}, Shape{128, 1024, 4}, Shape{32, 2048, 3},
                             Shape{255, 2176, 2}, Shape{400, 128, 3}}) {
    const Layout layout = block_layout(shape.outer, shape.channels, 1);
    for (const Isa isa : isas()) {
      const Inputs inputs = random_inputs(random, layout, *layout.geometry());
      Run run = plain_run(isa);
      const Results expected = results_of(inputs, run);
      run.threads = shape.threads;
      check_same_bits(inputs, expected, run);
    }
  }
}

template <class Use>
void for_random_inputs(Random& random, const int count, const std::int64_t most_elements,
                       const Use& use) {
  for (int used = 0; used < count;) {
    const std::int64_t most = random.chance(2) ? most_elements : random.of_any_size(most_elements);
    const Layout layout =
        random.chance(3) ? random_layout(random, most) : random_block(random, most);
    const std::optional<Geometry> geometry = layout.geometry();
    if (!geometry) continue;
    use(random_inputs(random, layout, *geometry));
    ++used;
  }
}

}  // namespace

void test_accuracy() {
  Random random(5);
  for_random_inputs(random, 1000, 20000, [&](const Inputs& inputs) {
    for (const Isa isa : isas()) {
      const Run run = random_run(random, isa);
      check_accuracy(inputs, results_of(inputs, run), run);
    }
  });
}

void test_bits() {
  test_shapes_that_differed();
  Random random(6);
  for_random_inputs(random, 4000, 100000, [&](const Inputs& inputs) {
    const Isa isa = random.of(isas());
    const Results expected = results_of(inputs, plain_run(isa));
    for (int i = 0; i < 5; ++i) check_same_bits(inputs, expected, random_run(random, isa));
  });
}

}  // namespace onedsl::test
