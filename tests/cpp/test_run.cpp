#include <cmath>
#include <cstdint>
#include <vector>

#include "call.hpp"
#include "check.hpp"
#include "layouts.hpp"
#include "tests.hpp"

namespace onedsl::test {
namespace {

// ---- Accuracy ----

// Check the gradient against the formulas in f64.
void check_gradient(const Call& call, const Results& results, const Run& run) {
  const Problem& problem = call.problem;
  const std::vector<std::int64_t> statistics = call.layout.statistics();
  const auto channels = static_cast<std::size_t>(problem.geometry.channels);
  const auto count = static_cast<double>(problem.geometry.per_channel());
  const std::vector<double> r = inverse_stddevs(problem, call[Input::variance]);
  const Tensor& src = call[Input::src];
  const Tensor& diff_dst = call[Input::diff_dst];
  const auto normalized = [&](const std::size_t i, const std::size_t c) {
    return (src[i] - call[Input::mean][c]) * r[c];
  };
  std::vector<double> diff_gamma(channels), diff_beta(channels), terms(channels), ones(channels);
  for (std::size_t i = 0; i < statistics.size(); ++i) {
    const auto c = static_cast<std::size_t>(statistics[i]);
    diff_gamma[c] += diff_dst[i] * normalized(i, c);
    diff_beta[c] += diff_dst[i];
    terms[c] += std::abs(diff_dst[i] * normalized(i, c));
    ones[c] += std::abs(diff_dst[i]);
  }
  if (problem.outputs.has(Output::diff_gamma)) {
    const Tensor& gammas = results.at(Output::diff_gamma);
    const Tensor& betas = results.at(Output::diff_beta);
    for (std::size_t c = 0; c < channels; ++c) {
      check(std::abs(gammas[c] - diff_gamma[c]) <= 1e-6 * terms[c], "diff_gamma[", c, "] is ",
            gammas[c], ", not ", diff_gamma[c], ": ", call, " on ", run);
      check(std::abs(betas[c] - diff_beta[c]) <= 1e-6 * ones[c], "diff_beta[", c, "] is ", betas[c],
            ", not ", diff_beta[c], ": ", call, " on ", run);
    }
  }
  for (std::size_t i = 0; i < statistics.size(); ++i) {
    const auto c = static_cast<std::size_t>(statistics[i]);
    const double scale = (call.has(Input::gamma) ? call[Input::gamma][c] : 1) * r[c];
    double gradient = diff_dst[i];
    double magnitude = std::abs(gradient);
    if (problem.statistics == Statistics::batch) {
      gradient -= diff_beta[c] / count + normalized(i, c) * diff_gamma[c] / count;
      magnitude += (ones[c] + std::abs(normalized(i, c)) * terms[c]) / count;
    }
    const double allowed = relative_tolerance(problem.data) * magnitude * std::abs(scale) +
                           absolute_tolerance(problem.data);
    const double result = results.at(Output::diff_src)[i];
    check(std::abs(result - scale * gradient) <= allowed, "diff_src[", i, "] is ", result, ", not ",
          scale * gradient, ": ", call, " on ", run);
  }
}

// ---- Reproducibility ----

void check_same_bits(const Call& call, const Results& expected, const Run& run) {
  check(same_bits(results_of(call, run), expected), "the bits differ: ", call, " on ", run);
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
    const Layout layout = block_layout(shape.outer, shape.channels, 1);
    for (const Isa isa : isas()) {
      for (const Operation operation : operations) {
        const Call call = random_call(random, operation, layout, *layout.geometry());
        Run run = default_run(isa);
        const Results expected = results_of(call, run);
        run.threads = shape.threads;
        check_same_bits(call, expected, run);
      }
    }
  }
}

// Long channels are summed about a pivot other than the mean. A wrong pivot changes the results if
// the sum of diff_dst is not close to zero.
void test_long_channels(Random& random) {
  for (const Layout& layout : {block_layout(9000, 3, 1), block_layout(3, 2, 4000)}) {
    Call call = random_call(random, Operation::training_backward, layout, *layout.geometry());
    call.problem.outputs = signature_of(call.problem.operation).outputs;
    Tensor& diff_dst = call[Input::diff_dst];
    for (std::size_t i = 0; i < static_cast<std::size_t>(layout.elements()); ++i) {
      diff_dst.set(i, 1 + random.real());
    }
    for (const Isa isa : isas()) {
      const Run run = random_run(random, isa);
      check_gradient(call, results_of(call, run), run);
    }
  }
}

}  // namespace

void test_gradient() {
  Random random(5);
  test_long_channels(random);
  for_random_layouts(random, 1000, 20000, [&](const Layout& layout, const Geometry& geometry) {
    const Call call = random_call(random, Operation::training_backward, layout, geometry);
    for (const Isa isa : isas()) {
      const Run run = random_run(random, isa);
      check_gradient(call, results_of(call, run), run);
    }
  });
}

void test_reproducibility() {
  test_bits_of_threads();
  Random random(6);
  for_random_layouts(random, 4000, 100000, [&](const Layout& layout, const Geometry& geometry) {
    const Call call = random_call(random, random.choice(operations), layout, geometry);
    const Isa isa = random.choice(isas());
    const Results expected = results_of(call, default_run(isa));
    for (int i = 0; i < 5; ++i) check_same_bits(call, expected, random_run(random, isa));
  });
}

}  // namespace onedsl::test
