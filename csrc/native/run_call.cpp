#include "run_call.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <vector>

#include "../core/convert_16bit.hpp"
#include "plan/cpu.hpp"
#include "run.hpp"

namespace onedsl::native {
namespace {

// Run with 16-bit statistics converted to f32, and convert the resulting statistics back.
int run_in_f32(const Call& call, const Pointers& memory, const Threads& threads) {
  const auto count = static_cast<std::size_t>(call.geometry.channels);
  const InputSet inputs = call.given - input_tensors;
  const OutputSet outputs = call.outputs - output_tensors;
  std::vector<float> values((inputs.count() + outputs.count()) * count);
  float* next = values.data();
  Pointers in_f32 = memory;
  inputs.for_each([&](const Input port) {
    convert(call.statistics_type, memory.in[port], DataType::f32, next, count);
    in_f32.in[port] = next;
    next += count;
  });
  outputs.for_each([&](const Output port) {
    in_f32.out[port] = next;
    next += count;
  });
  const int workers = run(call, in_f32, threads);
  outputs.for_each([&](const Output port) {
    convert(DataType::f32, in_f32.out[port], call.statistics_type, memory.out[port], count);
  });
  return workers;
}

// Write the statistics of an empty tensor.
void write_empty(const Call& call, const Pointers& memory) {
  const auto channels = static_cast<std::size_t>(call.geometry.channels);
  if (channels == 0) return;  // the pointers may be null
  const std::size_t bytes = channels * size_of(call.statistics_type);
  (call.outputs - output_tensors).for_each([&](const Output port) {
    const std::optional<Input> old = updated_input(port);
    const void* const kept = old ? memory.in[*old] : nullptr;
    kept != nullptr ? std::memmove(memory.out[port], kept, bytes)
                    : std::memset(memory.out[port], 0, bytes);
  });
  if (call.pass == Pass::reduce) {
    for (double* const totals : {memory.totals.first, memory.totals.second}) {
      std::fill_n(totals, channels, 0.0);
    }
  }
}

// Return how many of the threads had work.
int run_unlogged(const Call& call, const Pointers& memory, const Threads& threads) {
  const Geometry& geometry = call.geometry;
  const Pass pass = call.pass;
  if (pass == Pass::reduce) *memory.totals.count = static_cast<double>(geometry.per_channel());
  // The statistics of an empty part are those of the other parts.
  const bool other_parts = pass == Pass::apply && *memory.totals.count > 0 && geometry.channels > 0;
  if (geometry.elements() == 0 && !other_parts) {
    write_empty(call, memory);
    return 1;
  }
  return call.statistics_type == DataType::f32 ? run(call, memory, threads)
                                               : run_in_f32(call, memory, threads);
}

}  // namespace

void run_call(const Call& call, const Pointers& memory, const Threads& threads,
              const LogNames* const names) {
  // Without subscribers, the log costs a run one load of their number.
  if (!run_log.has_subscribers()) {
    run_unlogged(call, memory, threads);
    return;
  }
  const auto begin = std::chrono::steady_clock::now();
  const int workers = run_unlogged(call, memory, threads);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  const LogNames of_operation;
  run_log.record(call, workers, names != nullptr ? *names : of_operation, elapsed.count());
}

std::string implementation(const Pass pass) {
  constexpr std::array kernels = {"two-pass kernel", "first pass", "second pass"};  // by Pass
  return std::string("onedsl ") + kernels[static_cast<std::size_t>(pass)] + ", " + isa_name();
}

}  // namespace onedsl::native
