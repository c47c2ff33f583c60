#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "call.hpp"
#include "check.hpp"
#include "core/convert_16bit.hpp"
#include "layouts.hpp"
#include "native/relu.hpp"
#include "tests.hpp"

namespace onedsl::test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

double rounded(const DataType type, const float value) {
  switch (type) {
    case DataType::bf16:
      return static_cast<double>(bf16_to_f32(f32_to_bf16(value)));
    case DataType::f16:
      return static_cast<double>(f16_to_f32(f32_to_f16(value)));
    case DataType::f32:
      break;
  }
  return static_cast<double>(value);
}

// ---- Thresholds: comparing y with them before rounding is the same as comparing dst ----

void check_thresholds(const DataType type, const double clip, const float y) {
  const native::Relu relu = native::relu_of(clip, type);
  const double dst = rounded(type, y);
  const double bound = rounded(type, static_cast<float>(clip));
  check((y <= relu.zero_threshold) == (dst <= 0) || bound == 0, y, " is rounded to ", dst,
        ", and zero_threshold is ", relu.zero_threshold);
  const bool reaches_clip = !std::isinf(clip) && dst >= bound;
  check(bound == 0 || (y >= relu.clip_threshold) == reaches_clip, y, " is rounded to ", dst,
        ", the clip to ", bound, ", and clip_threshold is ", relu.clip_threshold);
  if (bound == 0) {
    check(y <= relu.zero_threshold || y >= relu.clip_threshold,
          "the gradient is not zero although the clip is 0");
  }
  check(static_cast<double>(relu.clip) == bound, "the clip is ", relu.clip, ", not ", bound);
}

void test_thresholds() {
  constexpr float inf = std::numeric_limits<float>::infinity();
  for (const DataType type : types) {
    for (const double clip : {6.0, 0.1, 1.0, 1e-3, 65504.0, 65519.0, 65520.0, 1e6, 3e38, 1e-7,
                              2.9e-8, 1e-9, 1e-40, 1e-45, infinity}) {
      const auto bound = static_cast<float>(rounded(type, static_cast<float>(clip)));
      const auto around = [&](const float middle) {
        float y = middle;
        for (int i = 0; i < 5; ++i) y = std::nextafter(y, -inf);
        for (int i = 0; i < 10; ++i, y = std::nextafter(y, inf)) check_thresholds(type, clip, y);
      };
      around(0);
      around(bound);
      for (const float midpoint :
           {0x1p-25F, 0x1p-24F, 0x1p-134F, 0x1p-133F, 65520.0F, 0x1.ffp127F}) {
        around(midpoint);
      }
      // Half the distance to the next value of the type below the clip, and the whole distance.
      for (const int bits : {8, 9, 10, 11, 12, 13}) {
        const float distance = std::ldexp(1.0F, std::ilogb(static_cast<float>(clip)) - bits);
        if (std::isfinite(clip)) around(bound - distance);
      }
    }
  }
}

// ---- Gradient ----

// Return whether the ReLU passes the gradient on.
bool is_open(const double dst, const double clip) {
  return !(dst <= 0 || (!std::isinf(clip) && dst >= clip));
}

// Return the gradient's call without ReLU, for a diff_dst that is already masked.
Call without_relu(const Call& call, const Tensor& dst) {
  Call masked{call.layout, call.problem, {}};
  masked.problem.operation = Operation::training_backward;
  masked.problem.outputs = signature_of(Operation::training_backward).outputs;
  signature_of(Operation::training_backward).inputs.for_each([&](const Input port) {
    if (call.has(port)) masked.inputs.emplace(port, call[port]);
  });
  const double clip = rounded(call.problem.data, static_cast<float>(call.problem.attributes.clip));
  Tensor& diff_dst = masked[Input::diff_dst];
  for (std::size_t i = 0; i < diff_dst.count(); ++i) {
    if (!is_open(dst[i], clip)) diff_dst.set(i, 0);
  }
  return masked;
}

// Check that the results have the bits of the gradient without ReLU for the masked diff_dst, and
// that diff_residual is the masked diff_dst.
void check_gradient(const Call& call, const Tensor& dst, const Run& run) {
  const Call masked = without_relu(call, dst);
  Results expected = results_of(masked, default_run(run.machine.isa));
  const Results results = results_of(call, run);
  expected.emplace(Output::diff_residual, masked[Input::diff_dst]);
  for (const auto& [port, tensor] : results) {
    check(tensor.same_bits(expected.at(port)), name_of(port),
          " is not the result for the masked diff_dst: ", call, " on ", run);
  }
}

// Any dst, including values that no forward pass computes.
void test_mask_of_dst(Random& random) {
  const double special[] = {0.0,   -0.0,   0.75,     0x1p-24,   -0x1p-24,     0x1p-133,
                            1e-45, -1e-45, infinity, -infinity, std::nan(""), 0.7499};
  for_random_layouts(random, 300, 20000, [&](const Layout& layout, const Geometry& geometry) {
    Call call = random_call(random, Operation::relu_training_backward, layout, geometry);
    if (!call.has(Input::dst)) {
      call.inputs.emplace(Input::dst, Tensor(call.problem.data, geometry.elements(), 3));
    }
    Tensor& dst = call[Input::dst];
    for (std::size_t i = 0; i < dst.count(); ++i) {
      dst.set(i, random.chance(2) ? special[random.between(0, 11)] : random.real());
    }
    for (const Isa isa : isas()) check_gradient(call, dst, random_run(random, isa));
  });
}

// Calls of the forward pass and of the gradient of its results.
struct Training {
  Call forward;
  Call backward;
};

Training random_training(Random& random, const Layout& layout, const Geometry& geometry) {
  Call forward = random_call(random, Operation::relu_forward_training, layout, geometry);
  forward.inputs.erase(Input::residual);
  Call backward = random_call(random, Operation::relu_training_backward, layout, geometry);
  backward.problem.data = forward.problem.data;
  backward.problem.attributes = forward.problem.attributes;
  backward.problem.variance_kind = VarianceKind::variance;
  backward.inputs.clear();
  Tensor diff_dst(forward.problem.data, geometry.elements(), random.between(0, 3));
  for (std::size_t i = 0; i < diff_dst.count(); ++i) diff_dst.set(i, 1.5 + random.real());
  backward.inputs.emplace(Input::diff_dst, std::move(diff_dst));
  return {std::move(forward), std::move(backward)};
}

void set_input(Call& call, const Input port, const Tensor& tensor) {
  call.inputs.erase(port);
  call.inputs.emplace(port, tensor);
}

// Choose beta so that some elements are next to zero or next to the clip before rounding.
void move_onto_thresholds(Random& random, Call& forward, const Run& run) {
  Call linear = forward;
  linear.problem.operation = Operation::forward_training;
  linear.problem.outputs = signature_of(Operation::forward_training).outputs;
  if (!linear.has(Input::beta)) return;
  for (std::size_t c = 0; c < linear[Input::beta].count(); ++c) linear[Input::beta].set(c, 0);
  const Results results = results_of(linear, run);
  const std::vector<std::int64_t> statistics = forward.layout.statistics();
  const double clip = forward.problem.attributes.clip;
  for (std::size_t i = 0; i < statistics.size(); ++i) {
    if (!random.chance(3)) continue;
    const double threshold = random.chance(2) && std::isfinite(clip) ? clip : 0;
    const auto c = static_cast<std::size_t>(statistics[i]);
    forward[Input::beta].set(c, threshold - results.at(Output::dst)[i]);
  }
}

// Check that the mask computed from src is the mask of the dst that the forward pass computed.
void test_mask_of_src(Random& random) {
  int open = 0;
  int closed = 0;
  for_random_layouts(random, 1500, 20000, [&](const Layout& layout, const Geometry& geometry) {
    Training training = random_training(random, layout, geometry);
    Call& forward = training.forward;
    Call& backward = training.backward;
    const Isa isa = random.choice(isas());
    // With a tiny gamma, dst is subnormal or underflows to zero.
    const double small = random.chance(3) ? (random.chance(2) ? 1e-7 : 1e-38) : 1;
    if (forward.has(Input::gamma)) {
      for (std::size_t c = 0; c < forward[Input::gamma].count(); ++c) {
        forward[Input::gamma].set(c, small * forward[Input::gamma][c]);
        if (small < 1 && forward.has(Input::beta)) forward[Input::beta].set(c, 0);
      }
    }
    if (random.chance(8)) forward[Input::src].set(0, random.chance(2) ? infinity : std::nan(""));
    if (small == 1) move_onto_thresholds(random, forward, random_run(random, isa));
    const Results results = results_of(forward, random_run(random, isa));
    set_input(backward, Input::src, forward[Input::src]);
    set_input(backward, Input::mean, results.at(Output::batch_mean));
    set_input(backward, Input::variance, results.at(Output::batch_variance));
    if (forward.has(Input::gamma)) set_input(backward, Input::gamma, forward[Input::gamma]);
    if (forward.has(Input::beta)) set_input(backward, Input::beta, forward[Input::beta]);
    const Tensor& dst = results.at(Output::dst);
    check_gradient(backward, dst, random_run(random, isa));
    const double clip =
        rounded(forward.problem.data, static_cast<float>(forward.problem.attributes.clip));
    for (std::size_t i = 0; i < dst.count(); ++i) ++(is_open(dst[i], clip) ? open : closed);
  });
  check(open > 100000 && closed > 100000, "the masks cover too little: ", open, " open, ", closed,
        " closed");
}

// ---- Forward pass ----

// Zeros, infinities, NaN and the clip. src is zero, so the residual is the input of the ReLU.
void test_values(Random& random) {
  const Layout layout = block_layout(64, 1, 33);
  for (const DataType type : types) {
    for (const Isa isa : isas()) {
      Call call = random_call(random, Operation::relu_forward_training, layout, *layout.geometry());
      call.inputs.erase(Input::gamma);
      call.inputs.erase(Input::beta);
      call.problem.data = type;
      call.problem.attributes.clip = random.chance(2) ? 0.1 : infinity;
      const double bound = rounded(type, static_cast<float>(call.problem.attributes.clip));
      call.inputs.erase(Input::src);
      call.inputs.erase(Input::residual);
      Tensor src(type, layout.elements(), 0);
      Tensor residual(type, layout.elements(), 1);
      const double special[] = {0.0, -0.0, infinity, -infinity, std::nan(""), bound, 0.25, -0.25};
      for (std::size_t i = 0; i < src.count(); ++i) {
        src.set(i, 0);
        residual.set(i, special[i % 8]);
      }
      call.inputs.emplace(Input::src, std::move(src));
      call.inputs.emplace(Input::residual, std::move(residual));
      const Run run = random_run(random, isa);
      const Results results = results_of(call, run);
      for (std::size_t i = 0; i < layout.statistics().size(); ++i) {
        const double y = call[Input::residual][i];
        const double expected = y <= 0 ? 0 : (y >= bound ? bound : y);
        const double dst = results.at(Output::dst)[i];
        const bool same = dst == expected && !std::signbit(dst);
        check(same || (std::isnan(dst) && std::isnan(y)), "relu of ", y, " is ", dst, ": ", call,
              " on ", run);
      }
    }
  }
}

}  // namespace

void test_relu() {
  Random random(9);
  test_thresholds();
  test_values(random);
  test_mask_of_dst(random);
  test_mask_of_src(random);
}

}  // namespace onedsl::test
