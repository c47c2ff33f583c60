#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <ostream>
#include <utility>
#include <vector>

#include "check.hpp"
#include "core/call.hpp"
#include "core/thread_limit.hpp"
#include "core/threads.hpp"
#include "isas.hpp"
#include "layouts.hpp"
#include "native/run.hpp"
#include "tensor.hpp"

namespace onedsl::test {

using native::Isa;
using native::Machine;

inline constexpr std::array types = {DataType::f32, DataType::bf16, DataType::f16};
inline constexpr auto operations = [] {
  std::array<Operation, signatures::all.size()> all{};
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<Operation>(i);
  return all;
}();

// A checked call, and its inputs.
struct Case {
  Layout layout;
  Call call;
  std::map<Input, Tensor> inputs;
};

using Results = std::map<Output, Tensor>;

inline bool same_bits(const Results& a, const Results& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& p, const auto& q) {
    return p.first == q.first && p.second.same_bits(q.second);
  });
}

inline std::ostream& operator<<(std::ostream& out, const Case& test) {
  const Call& call = test.call;
  out << signature_of(call.operation).name << ", " << name_of(call.data) << " "
      << (call.statistics_kind == StatisticsKind::batch ? "batch " : "frozen ") << test.layout;
  for (const auto& input : test.inputs) out << " " << name_of(input.first);
  return out << ", " << info_of(call.attributes.activation).id << " " << call.attributes.parameter;
}

// Return a case with small finite inputs, and with or without each optional input. The gradient's
// statistics are random, not those of src.
inline Case random_case(Random& random, const Operation operation, const Layout& layout,
                        const Geometry& geometry) {
  OpConfig config;
  config.operation = operation;
  Case test{layout, Call(config), {}};
  Call& call = test.call;
  const Signature& signature = signature_of(operation);
  call.geometry = geometry;
  call.data = random.choice(types);
  call.attributes.epsilon = 1e-3;
  call.attributes.momentum = random.real();
  if (operation >= Operation::act_forward_training) {
    const auto last = static_cast<std::int64_t>(activations::all.size()) - 1;
    // More often a ReLU, which has most kernels.
    const auto activation = static_cast<Activation>(random.chance(3) ? 1 : random.between(1, last));
    call.attributes.set_activation(activation, std::nullopt);
    if (random.chance(2)) call.attributes.parameter = 0.75;
  }
  call.outputs = random.chance(8) ? signature.required_outputs : signature.outputs;
  if (signature.outputs.has(Output::diff_src)) {
    const bool frozen = operation == Operation::training_backward && random.chance(4);
    call.statistics_kind = frozen ? StatisticsKind::frozen : StatisticsKind::batch;
    call.variance_kind = random.chance(4) ? VarianceKind::inverse_stddev : VarianceKind::variance;
  }
  call.given = InputSet();
  const bool has_dst = call.attributes.derivative_follows_from_dst() && random.chance(2);
  const InputSet replaced(has_dst ? Input::residual : Input::dst);
  (signature.inputs - replaced).for_each([&](const Input port) {
    if (signature.optional_inputs.has(port) && random.chance(4)) return;
    const DataType type = is_tensor(port) ? call.data : DataType::f32;
    Tensor tensor(type, is_tensor(port) ? geometry.elements() : geometry.channels,
                  random.chance(2) ? 0 : random.between(1, 15));
    for (std::size_t i = 0; i < tensor.count(); ++i) {
      const double shift = port == Input::variance ? 1.5 : 0;
      tensor.set(i, (port == Input::src ? 3 : 1) * random.real() + shift);
    }
    call.given.add(port);
    test.inputs.emplace(port, std::move(tensor));
  });
  return test;
}

// Call use(layout, geometry) for `count` random layouts.
template <class Use>
void for_random_layouts(Random& random, const int count, const std::int64_t max_elements,
                        const Use& use) {
  for (int done = 0; done < count;) {
    const std::int64_t most = random.chance(2) ? max_elements : random.of_any_size(max_elements);
    const Layout layout =
        random.chance(3) ? random_layout(random, most) : random_nxc_or_ncx(random, most);
    const std::optional<Geometry> geometry = layout.geometry();
    if (!geometry) continue;
    use(layout, *geometry);
    ++done;
  }
}

// How a call is run. Small cache sizes make a small problem use the schedule and the non-temporal
// stores of a large one.
struct Run {
  Machine machine;
  int threads = 1;
  bool openmp = false;  // else the shares of each loop run one after the other, in a random order
  bool in_place = false;
  bool separate_passes = false;     // reduce, then apply
  std::int64_t shift = 0;           // of the outputs, see Tensor
  std::int64_t residual_shift = 0;  // of diff_residual, in addition
  std::uint64_t pitches = 0;        // seed of random pitches of each tensor; 0: dense
};

inline Run default_run(const Isa isa) {
  Run run;
  run.machine.isa = isa;
  run.machine.cache = {std::int64_t{1} << 25, 8, std::int64_t{1} << 20};
  return run;
}

inline Run random_run(Random& random, const Isa isa) {
  constexpr std::array threads = {1, 2, 3, 4, 7, 16, 28, 128};
  Run run;
  run.machine.isa = isa;
  run.machine.cache = {std::int64_t{1} << random.between(10, 26), random.between(1, 8),
                       std::int64_t{1} << random.between(19, 22)};
  run.machine.parallel_from = random.of_any_size(32768);
  run.machine.parallel_from_per_thread = 0;
  run.machine.min_elements_per_worker = random.of_any_size(4096);
  run.threads = random.choice(threads);
  run.openmp = run.threads <= 7 && random.chance(2);
  run.in_place = random.chance(3);
  run.separate_passes = random.chance(3);
  run.shift = random.chance(2) ? 0 : random.between(1, 15);
  run.residual_shift = random.chance(2) ? 0 : random.between(1, 15);
  return run;
}

inline std::ostream& operator<<(std::ostream& out, const Run& run) {
  return out << name_of(run.machine.isa) << ", " << run.threads
             << (run.openmp ? " threads of " : " workers of ")
             << run.machine.min_elements_per_worker << " elements, cache of "
             << run.machine.cache.bytes << " bytes for " << run.machine.cache.cores << " cores"
             << (run.in_place ? ", in place" : "")
             << (run.separate_passes ? ", separate passes" : "") << ", outputs shifted by "
             << run.shift << " and " << run.residual_shift << ", pitches " << run.pitches;
}

// As XLA's pool may do it: no share may wait for another.
class RandomOrder final : public Threads {
 public:
  explicit RandomOrder(const int count) : count_(count) {}
  int count() const noexcept override { return count_; }
  void run(Loops& loops, const int workers) const override {
    check(workers <= count_, "more workers than threads");
    Random random(workers);
    std::vector<std::int64_t> shares(static_cast<std::size_t>(workers));
    std::iota(shares.begin(), shares.end(), 0);
    for (int loop = loops.first(); loop != Loops::none; loop = loops.next(loop)) {
      for (std::size_t i = shares.size(); i-- > 1;) {
        std::swap(shares[i], shares[static_cast<std::size_t>(random.between(0, std::int64_t(i)))]);
      }
      for (const auto share : shares) loops.run(loop, {share, workers});
      if (loops.is_last(loop)) check(loops.next(loop) == Loops::none, "a loop after the last one");
    }
  }

 private:
  int count_;
};

inline void run_on_threads(const Call& call, const Run& run, const Pointers& memory) {
  if (!run.openmp) {
    native::run(call, memory, RandomOrder(run.threads), run.machine);
    return;
  }
  const ThreadLimit limit(run.threads);
  native::run(call, memory, OpenMPThreads(run.threads), run.machine);
}

// Run the reduce pass, which has no outputs, and then the apply pass.
inline void run_separate_passes(Call call, const Run& run, Pointers memory) {
  const auto statistics = static_cast<std::size_t>(call.geometry.channels);
  auto count = static_cast<double>(call.geometry.per_channel());
  std::vector<double> first(statistics), second(statistics);
  Pointers inputs;
  inputs.in = memory.in;
  inputs.totals = memory.totals = {&count, first.data(), second.data()};
  Call reduction = call;
  reduction.pass = Pass::reduce;
  reduction.outputs = {};
  run_on_threads(reduction, run, inputs);
  call.pass = Pass::apply;
  run_on_threads(call, run, memory);
}

// The pitches of dense tensors.
inline Pitches dense_pitches(const Call& call) {
  Pitches pitches;
  const Pitch dense = call.geometry.dense_pitch();
  input_tensors.for_each([&](const Input port) {
    if (call.given.has(port)) pitches.of(port) = dense;
  });
  (call.outputs & output_tensors).for_each([&](const Output port) { pitches.of(port) = dense; });
  return pitches;
}

// Return whether the kernels can read tensors of other pitches than the dense one.
inline bool may_have_pitch(const Geometry& g) {
  const std::int64_t position = g.channels * g.inner;
  return g.inner >= max_lanes || position % pair_elements == 0 || position > max_joined_position;
}

// Return a random pitch: gaps, another order of positions and channels, and negative distances.
// Those of inputs may also be 0.
inline Pitch random_pitch(Random& random, const Geometry& g, const bool input) {
  const bool any_channel = g.inner >= max_lanes;
  const auto gap = [&] { return random.chance(2) ? random.between(1, 40) : 0; };
  const auto distance = [&](const std::int64_t least) {
    if (input && random.chance(8)) return std::int64_t{0};
    return random.chance(4) ? -(least + gap()) : least + gap();
  };
  Pitch pitch = g.dense_pitch();
  if (any_channel && random.chance(4)) {  // positions are neighbors
    pitch.position = distance(g.inner);
    pitch.channel = distance(std::max(std::abs(pitch.position), g.inner) * g.outer);
  } else {
    if (any_channel && random.chance(2)) pitch.channel = distance(g.inner);
    pitch.position = distance(std::max(std::abs(pitch.channel), g.inner) * g.channels);
  }
  return pitch;
}

// The tensors of a run that have pitches of their own.
class PitchedTensors {
 public:
  // Replaces the tensors in memory. The inputs of the case become the dense copies: several
  // elements may share memory.
  PitchedTensors(Case& test, const Run& run, const Results& results, Pointers& memory,
                 Pitches& pitches)
      : random_(run.pitches) {
    const Signature& signature = signature_of(test.call.operation);
    for (auto& [port, tensor] : test.inputs) {
      if (!is_tensor(port) || random_.chance(4)) continue;
      const bool same = run.in_place && port == signature.in_place_input;
      StridedTensor& pitched = add(tensor, test.call, !same, pitches.of(port));
      memory.in[port] = pitched.data();
      pitched.copy_to(tensor);
      if (!same) continue;
      memory.out[signature.result] = pitched.data();
      pitches.of(signature.result) = pitches.of(port);
      outputs_.emplace(signature.result, &pitched);
    }
    for (auto& [port, tensor] : results) {
      if (!is_tensor(port) || outputs_.count(port) != 0 || random_.chance(4)) continue;
      if (run.in_place && port == signature.result) continue;
      StridedTensor& pitched = add(tensor, test.call, false, pitches.of(port));
      memory.out[port] = pitched.data();
      outputs_.emplace(port, &pitched);
    }
  }

  void copy_to(Results& results) {
    for (auto& [port, tensor] : outputs_) tensor->copy_to(results.at(port));
  }
  bool guards_intact() const {
    return std::all_of(all_.begin(), all_.end(),
                       [](const auto& tensor) { return tensor->guards_intact(); });
  }

 private:
  StridedTensor& add(const Tensor& tensor, const Call& call, const bool input, Pitch& pitch) {
    const Geometry& g = call.geometry;
    pitch = random_pitch(random_, g, input);
    std::vector<std::int64_t> offsets;
    for (std::int64_t n = 0; n < g.outer; ++n) {
      for (std::int64_t c = 0; c < g.channels; ++c) {
        for (std::int64_t i = 0; i < g.inner; ++i) {
          offsets.push_back(n * pitch.position + c * pitch.channel + i);
        }
      }
    }
    all_.push_back(std::make_unique<StridedTensor>(tensor, call.data, std::move(offsets)));
    return *all_.back();
  }

  Random random_;
  std::vector<std::unique_ptr<StridedTensor>> all_;
  std::map<Output, StridedTensor*> outputs_;
};

// Run a case and return its results. Check that no byte outside of the outputs is written.
inline Results results_of(Case& test, const Run& run) {
  Call call = test.call;
  const Signature& signature = signature_of(call.operation);
  Pointers memory;
  for (const auto& [port, tensor] : test.inputs) memory.in[port] = tensor.data();
  Results results;
  call.outputs.for_each([&](const Output port) {
    const auto count = is_tensor(port) ? call.geometry.elements() : call.geometry.channels;
    const DataType type = is_tensor(port) ? call.data : DataType::f32;
    const auto shift = run.shift + (port == Output::diff_residual ? run.residual_shift : 0);
    Tensor& tensor = results.emplace(port, Tensor(type, count, shift)).first->second;
    memory.out[port] = tensor.data();
  });
  if (run.in_place) {
    results.at(signature.result).copy_from(test.inputs.at(signature.in_place_input));
    memory.in[signature.in_place_input] = results.at(signature.result).data();
  }
  call.pitches = dense_pitches(call);
  std::optional<PitchedTensors> pitched;
  if (run.pitches != 0) pitched.emplace(test, run, results, memory, call.pitches);
  if (run.separate_passes) {
    run_separate_passes(call, run, memory);
  } else {
    run_on_threads(call, run, memory);
  }
  if (pitched) {
    pitched->copy_to(results);
    check(pitched->guards_intact(), "bytes outside of a pitched output were written: ", test,
          " on ", run);
  }
  for (const auto& [port, tensor] : results) {
    check(tensor.guards_intact(), "bytes outside of ", name_of(port), " were written: ", test,
          " on ", run);
  }
  return results;
}

}  // namespace onedsl::test
