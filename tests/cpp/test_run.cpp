#include <cstdint>

#include "call.hpp"
#include "check.hpp"
#include "layouts.hpp"
#include "native/run_call.hpp"
#include "tests.hpp"

namespace onedsl::test {
namespace {

void check_same_bits(Case& test, const Results& expected, const Run& run) {
  check(same_bits(results_of(test, run), expected), "the bits differ: ", test, " on ", run);
}

// Compares the results of tensors with pitches of their own with those of dense copies on one
// thread.
void check_bits_of_pitches(Random& random, const Layout& layout, const Geometry& geometry) {
  Case test = random_case(random, random.choice(operations), layout, geometry);
  Run run = random_run(random, random.choice(isas()));
  run.pitches = static_cast<std::uint64_t>(random.between(1, 1 << 30));
  const Results pitched = results_of(test, run);
  const Results dense = results_of(test, default_run(run.machine.isa));
  check(same_bits(dense, pitched), "the bits differ: ", test, " on ", run);
}

// With all but the last of these shapes and numbers of threads, bits once depended on the number of
// threads. The last one has rows of several blocks even on one thread.
void test_bits_of_threads() {
  struct Shape {
    std::int64_t outer, channels;
    int threads;
  };
  Random random(4);
  for (const Shape& shape : {Shape{120, 512, 2}, Shape{128, 1024, 4}, Shape{32, 2048, 3},
                             Shape{255, 2176, 2}, Shape{400, 128, 3}, Shape{6, 40001, 3}}) {
    const Layout layout = nxc_or_ncx_layout(shape.outer, shape.channels, 1);
    for (const Isa isa : isas()) {
      for (const Operation operation : operations) {
        Case test = random_case(random, operation, layout, *layout.geometry());
        Run run = default_run(isa);
        const Results expected = results_of(test, run);
        run.threads = shape.threads;
        run.openmp = true;
        check_same_bits(test, expected, run);
      }
    }
  }
}

}  // namespace

// Tensors with pitches of their own: the bits are those of their dense copies.
void test_pitches() {
  Random random(7);
  int done = 0;
  for_random_layouts(random, 8000, 100000, [&](const Layout& layout, const Geometry& geometry) {
    if (!may_have_pitch(geometry)) return;
    check_bits_of_pitches(random, layout, geometry);
    ++done;
  });
  check(done > 2500, done, " layouts with pitches");
  // Rows of few channels, which are joined.
  for (int i = 0; i < 1500; ++i) {
    const std::int64_t channels = pair_elements * random.between(1, 8);
    const Layout layout = nxc_or_ncx_layout(random.of_any_size(100000 / channels), channels, 1);
    check_bits_of_pitches(random, layout, *layout.geometry());
  }
}

// Arrays without elements may have null pointers.
void test_empty() {
  for (const Operation operation : operations) {
    OpConfig config;
    config.operation = operation;
    Call call(config);
    call.geometry = {2, 0, 1};
    native::run_call(call, {}, OpenMPThreads(1));
  }
}

void test_reproducibility() {
  test_bits_of_threads();
  Random random(6);
  for_random_layouts(random, 4000, 100000, [&](const Layout& layout, const Geometry& geometry) {
    Case test = random_case(random, random.choice(operations), layout, geometry);
    const Isa isa = random.choice(isas());
    const Results expected = results_of(test, default_run(isa));
    for (int i = 0; i < 5; ++i) check_same_bits(test, expected, random_run(random, isa));
  });
}

}  // namespace onedsl::test
