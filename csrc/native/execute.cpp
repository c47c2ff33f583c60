#include "execute.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <vector>

#include "../core/convert_16bit.hpp"
#include "cpu.hpp"
#include "run.hpp"

namespace onedsl::native {
namespace {

template <class Port, class Pointer>
PortSet<Port> statistics_of(const PerPort<Port, Pointer>& ports) {
  PortSet<Port> statistics;
  present(ports).for_each([&](const Port port) {
    if (!is_tensor(port)) statistics.add(port);
  });
  return statistics;
}

// Run with 16-bit statistics converted to f32, and convert the resulting statistics back.
void run_in_f32(const Problem& problem, const Threads& threads, const Ports& ports) {
  const auto count = static_cast<std::size_t>(problem.geometry.channels);
  const InputSet inputs = statistics_of(ports.in);
  const OutputSet outputs = statistics_of(ports.out);
  std::vector<float> values((inputs.count() + outputs.count()) * count);
  float* next = values.data();
  Ports f32_ports = ports;
  inputs.for_each([&](const Input port) {
    convert(problem.statistics_type, ports.in[port], DataType::f32, next, count);
    f32_ports.in[port] = next;
    next += count;
  });
  outputs.for_each([&](const Output port) {
    f32_ports.out[port] = next;
    next += count;
  });
  run(problem, threads, f32_ports);
  outputs.for_each([&](const Output port) {
    convert(DataType::f32, f32_ports.out[port], problem.statistics_type, ports.out[port], count);
  });
}

// Write the statistics of an empty tensor.
void write_empty(const Problem& problem, const Ports& ports) {
  const auto statistics = static_cast<std::size_t>(problem.geometry.channels);
  const std::size_t bytes = statistics * size_of(problem.statistics_type);
  problem.outputs.for_each([&](const Output port) {
    if (is_tensor(port)) return;
    const void* kept = nullptr;
    if (port == Output::running_mean) kept = ports.in[Input::mean];
    if (port == Output::running_variance) kept = ports.in[Input::variance];
    kept != nullptr ? std::memcpy(ports.out[port], kept, bytes)
                    : std::memset(ports.out[port], 0, bytes);
  });
  if (problem.pass == Pass::reduce) {
    for (double* const sums : {ports.sums.first, ports.sums.second}) {
      std::fill_n(sums, statistics, 0.0);
    }
  }
}

void execute_unlogged(const Problem& problem, const Threads& threads, const Ports& ports) {
  const Geometry& geometry = problem.geometry;
  const Pass pass = problem.pass;
  if (pass == Pass::reduce) *ports.sums.count = static_cast<double>(geometry.per_channel());
  // The statistics of an empty part are those of the other parts.
  const bool other_parts = pass == Pass::apply && *ports.sums.count > 0 && geometry.channels > 0;
  if (geometry.elements() == 0 && !other_parts) return write_empty(problem, ports);
  if (problem.statistics_type == DataType::f32) return run(problem, threads, ports);
  run_in_f32(problem, threads, ports);
}

}  // namespace

void execute(const Problem& problem, const Threads& threads, const Ports& ports,
             const LogNames& names) {
  // Without subscribers, the log costs a run one load of their number.
  if (!run_log.has_subscribers()) {
    return execute_unlogged(problem, threads, ports);
  }
  const auto begin = std::chrono::steady_clock::now();
  execute_unlogged(problem, threads, ports);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  run_log.record(problem, threads.count(), ports, names, elapsed.count());
}

std::string implementation(const Pass pass) {
  constexpr std::array kernels = {"two-pass kernel", "first pass", "second pass"};  // by Pass
  return std::string("onedsl ") + kernels[static_cast<std::size_t>(pass)] + ", " + isa_name();
}

}  // namespace onedsl::native
