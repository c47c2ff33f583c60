#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "call.hpp"
#include "check.hpp"
#include "layouts.hpp"
#include "tests.hpp"

namespace onedsl::test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

struct Moments {
  std::vector<double> mean;
  std::vector<double> variance;
};

// Return mean and variance by their definitions, in long double.
Moments moments_of(const Call& call, const std::vector<std::int64_t>& statistics) {
  const auto channels = static_cast<std::size_t>(call.problem.geometry.channels);
  const auto count = static_cast<long double>(call.problem.geometry.per_channel());
  const Tensor& src = call[Input::src];
  std::vector<long double> mean(channels);
  std::vector<long double> variance(channels);
  for (std::size_t i = 0; i < statistics.size(); ++i) {
    mean[static_cast<std::size_t>(statistics[i])] += src[i];
  }
  for (long double& sum : mean) sum /= count;
  for (std::size_t i = 0; i < statistics.size(); ++i) {
    const auto c = static_cast<std::size_t>(statistics[i]);
    variance[c] += (src[i] - mean[c]) * (src[i] - mean[c]);
  }
  Moments moments;
  for (std::size_t c = 0; c < channels; ++c) {
    moments.mean.push_back(static_cast<double>(mean[c]));
    moments.variance.push_back(static_cast<double>(variance[c] / count));
  }
  return moments;
}

void check_near(const double got, const double expected, const double allowed,
                const char* const name, const std::size_t index, const Call& call, const Run& run) {
  check(std::abs(got - expected) <= allowed, name, "[", index, "] is ", got, ", not ", expected,
        " +- ", allowed, ": ", call, " on ", run);
}

void check_statistics(const Call& call, const Results& results, const Run& run) {
  const Moments moments = moments_of(call, call.layout.statistics());
  const double momentum = call.problem.attributes.momentum;
  for (std::size_t c = 0; c < moments.mean.size(); ++c) {
    const double mean = moments.mean[c];
    const double variance = moments.variance[c];
    // The mean is rounded to f32, by up to 2^-24 of its value; the error of its sum is relative to
    // the standard deviation.
    const double mean_error = 0x1.01p-24 * std::abs(mean) + 1e-6 * std::sqrt(variance) + 1e-30;
    const double variance_error = 1e-6 * variance + 1e-30;
    const auto near = [&](const Output port, const double expected, const double allowed) {
      check_near(results.at(port)[c], expected, allowed, name_of(port), c, call, run);
    };
    near(Output::batch_mean, mean, mean_error);
    near(Output::batch_variance, variance, variance_error);
    const double mean_before = momentum * call[Input::mean][c];
    const double variance_before = momentum * call[Input::variance][c];
    near(Output::running_mean, mean_before + (1 - momentum) * mean,
         mean_error + 1e-7 * (std::abs(mean_before) + std::abs(mean)));
    near(Output::running_variance, variance_before + (1 - momentum) * variance,
         variance_error + 1e-7 * (std::abs(variance_before) + variance));
  }
}

// Check dst against the formula with the returned statistics.
void check_dst(const Call& call, const Results& results, const Run& run) {
  const Problem& problem = call.problem;
  const std::vector<std::int64_t> statistics = call.layout.statistics();
  const std::vector<double> r = inverse_stddevs(problem, results.at(Output::batch_variance));
  const bool relu = problem.operation == Operation::relu_forward_training;
  for (std::size_t i = 0; i < statistics.size(); ++i) {
    const auto c = static_cast<std::size_t>(statistics[i]);
    const double gamma = call.has(Input::gamma) ? call[Input::gamma][c] : 1;
    const double beta = call.has(Input::beta) ? call[Input::beta][c] : 0;
    const double residual = call.has(Input::residual) ? call[Input::residual][i] : 0;
    const double scaled = (call[Input::src][i] - results.at(Output::batch_mean)[c]) * gamma * r[c];
    double expected = scaled + beta + residual;
    if (relu) expected = std::min(std::max(expected, 0.0), problem.attributes.clip);
    const double allowed = relative_tolerance(problem.data) *
                               (std::abs(scaled) + std::abs(beta) + std::abs(residual)) +
                           absolute_tolerance(problem.data);
    check_near(results.at(Output::dst)[i], expected, allowed, "dst", i, call, run);
  }
}

// Return a forward call whose src is not yet set.
Call call_of(Random& random, const std::int64_t outer, const std::int64_t channels,
             const std::int64_t inner, const DataType type) {
  const Layout layout = block_layout(outer, channels, inner);
  Call call = random_call(random, Operation::forward_training, layout, *layout.geometry());
  call.problem.data = type;
  call.inputs.erase(Input::src);
  call.inputs.emplace(Input::src, Tensor(type, layout.elements(), 0));
  return call;
}

template <class Value>
void fill(Call& call, const Value& value) {
  const std::vector<std::int64_t> statistics = call.layout.statistics();
  for (std::size_t i = 0; i < statistics.size(); ++i) {
    call[Input::src].set(i, value(i, statistics[i]));
  }
}

// Call use(call, run) for columns and planes, short and long channels, and all instruction sets.
template <class Use>
void for_shapes_and_isas(Random& random, const DataType type, const Use& use) {
  struct Shape {
    std::int64_t outer, channels, inner;
  };
  for (const Shape& shape :
       {Shape{3, 5, 7}, Shape{50, 3, 300}, Shape{3000, 5, 1}, Shape{999, 64, 1}, Shape{64, 2, 3}}) {
    Call call = call_of(random, shape.outer, shape.channels, shape.inner, type);
    for (const Isa isa : isas()) use(call, random_run(random, isa));
  }
}

void test_large_means(Random& random) {
  for_shapes_and_isas(random, DataType::f32, [&](Call& call, const Run& run) {
    for (const double mean : {1e2, -1e4, 1e6}) {
      fill(call, [&](std::size_t, const std::int64_t c) {
        return mean * static_cast<double>(c + 1) + random.real();
      });
      check_statistics(call, results_of(call, run), run);
    }
  });
}

// Few or many outliers at random positions. If the pivot is estimated from outliers, or from all
// elements but them, the sums have another order of magnitude.
void test_outliers(Random& random) {
  for_shapes_and_isas(random, DataType::f32, [&](Call& call, const Run& run) {
    const std::size_t count = call[Input::src].count();
    for (const std::size_t period : {std::size_t{2}, std::size_t{7}, count / 16 + 1, count}) {
      const auto first = static_cast<std::size_t>(random.between(0, std::int64_t(period) - 1));
      fill(call, [&](const std::size_t i, std::int64_t) {
        return i % period == first ? 1e4 : 3 + 1e-3 * random.real();
      });
      check_statistics(call, results_of(call, run), run);
    }
  });
}

void test_constant_channels(Random& random) {
  for (const DataType type : types) {
    for_shapes_and_isas(random, type, [&](Call& call, const Run& run) {
      fill(call, [&](std::size_t, const std::int64_t c) { return 0.1 + static_cast<double>(c); });
      const Results results = results_of(call, run);
      for (std::size_t c = 0; c < results.at(Output::batch_mean).count(); ++c) {
        const double variance = results.at(Output::batch_variance)[c];
        check(variance == 0, "a constant channel has the variance ", variance, ": ", call, " on ",
              run);
      }
      check_dst(call, results, run);
    });
  }
}

// Infinities and NaN affect only their channels, and the results there are those of the formulas.
void test_not_finite(Random& random) {
  for (const double special : {infinity, -infinity, std::nan("")}) {
    for_shapes_and_isas(random, DataType::f32, [&](Call& call, const Run& run) {
      const std::int64_t channels = call.problem.geometry.channels;
      const std::int64_t nan_channel = random.between(0, channels - 1);
      const auto at = static_cast<std::size_t>(
          random.between(0, static_cast<std::int64_t>(call[Input::src].count()) - 1));
      fill(call, [&](const std::size_t i, const std::int64_t c) {
        // One such element; with NaN also a whole channel.
        return i == at || (std::isnan(special) && c == nan_channel) ? special : random.real();
      });
      const std::vector<std::int64_t> statistics = call.layout.statistics();
      const Moments moments = moments_of(call, statistics);
      const Results results = results_of(call, run);
      for (std::size_t c = 0; c < moments.mean.size(); ++c) {
        const double mean = results.at(Output::batch_mean)[c];
        const double variance = results.at(Output::batch_variance)[c];
        if (std::isfinite(moments.mean[c])) {
          check_near(mean, moments.mean[c], 1e-6, "batch_mean", c, call, run);
          check_near(variance, moments.variance[c], 1e-6, "batch_variance", c, call, run);
        } else {
          check(mean == moments.mean[c] || (std::isnan(mean) && std::isnan(moments.mean[c])),
                "the mean is ", mean, ", not ", moments.mean[c], ": ", call, " on ", run);
          check(std::isnan(variance), "the variance is ", variance, ", not NaN: ", call, " on ",
                run);
        }
      }
      for (std::size_t i = 0; i < statistics.size(); ++i) {
        const bool finite = std::isfinite(moments.mean[static_cast<std::size_t>(statistics[i])]);
        check(std::isfinite(results.at(Output::dst)[i]) == finite, "dst[", i, "] is ",
              results.at(Output::dst)[i], ": ", call, " on ", run);
      }
    });
  }
}

}  // namespace

void test_forward() {
  Random random(7);
  for_random_layouts(random, 1000, 20000, [&](const Layout& layout, const Geometry& geometry) {
    const Operation operation =
        random.chance(2) ? Operation::forward_training : Operation::relu_forward_training;
    const Call call = random_call(random, operation, layout, geometry);
    for (const Isa isa : isas()) {
      const Run run = random_run(random, isa);
      const Results results = results_of(call, run);
      check_statistics(call, results, run);
      check_dst(call, results, run);
    }
  });
}

void test_statistics() {
  Random random(8);
  test_large_means(random);
  test_outliers(random);
  test_constant_channels(random);
  test_not_finite(random);
}

}  // namespace onedsl::test
