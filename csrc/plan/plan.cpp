#include "plan.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "../core/convert_16bit.hpp"
#include "../native/cpu.hpp"
#include "../onednn/backend.hpp"
#include "../onednn/engine.hpp"

namespace onedsl {
namespace {

template <class Port, class Pointer>
PortSet<Port> statistics_of(const PerPort<Port, Pointer>& ports) {
  PortSet<Port> statistics;
  present(ports).for_each([&](const Port port) {
    if (!is_tensor(port)) statistics.add(port);
  });
  return statistics;
}

// Calls run(ports) with 16-bit statistics of the type converted to f32, and converts the resulting
// statistics back. `count` is the length of each statistic.
template <class Run>
void run_in_f32(const Ports& ports, const DataType type, const std::size_t count, const Run& run) {
  const InputSet inputs = statistics_of(ports.in);
  const OutputSet outputs = statistics_of(ports.out);
  std::vector<float> values((inputs.count() + outputs.count()) * count);
  float* next = values.data();
  Ports f32_ports = ports;
  inputs.for_each([&](const Input port) {
    const auto* const from = static_cast<const std::uint16_t*>(ports.in[port]);
    std::transform(from, from + count, next, type == DataType::bf16 ? bf16_to_f32 : f16_to_f32);
    f32_ports.in[port] = next;
    next += count;
  });
  outputs.for_each([&](const Output port) {
    f32_ports.out[port] = next;
    next += count;
  });
  run(f32_ports);
  outputs.for_each([&](const Output port) {
    const auto* const from = static_cast<const float*>(f32_ports.out[port]);
    std::transform(from, from + count, static_cast<std::uint16_t*>(ports.out[port]),
                   type == DataType::bf16 ? f32_to_bf16 : f32_to_f16);
  });
}

}  // namespace

Plan::Plan(const PlanKey& key) : key_(key) {
  if (key.onednn) {
    onednn_ = std::make_unique<onednn::Backend>(key.problem, key.num_threads);
  }
}

Plan::~Plan() = default;

std::string Plan::implementation() const {
  if (onednn_) {
    return onednn::name() + " " + signature_of(key_.problem.operation).name + ", " +
           onednn::cpu_isa();
  }
  constexpr std::array kernels = {"two-pass kernel", "first pass", "second pass"};  // by Pass
  const auto pass = static_cast<std::size_t>(key_.problem.pass);
  return std::string("onedsl ") + kernels[pass] + ", " + native::isa_name();
}

std::size_t Plan::bytes() const noexcept { return sizeof *this + (onednn_ ? onednn_->bytes() : 0); }

onednn::Nodes Plan::graph() const { return onednn_ ? onednn_->graph() : onednn::Nodes{}; }

std::optional<native::KernelInfo> Plan::kernel_info() const {
  if (onednn_ || key_.problem.geometry.elements() == 0) return std::nullopt;
  return native::kernel_info(key_.problem, key_.num_threads);
}

void Plan::run(const Ports& ports) const {
  if (onednn_) return onednn_->run(ports);
  native::run(key_.problem, key_.num_threads, ports);
}

// Empty tensors never reach oneDNN: only some of its versions write their sums.
void Plan::write_empty(const Ports& ports) const {
  const auto statistics = static_cast<std::size_t>(key_.problem.geometry.channels);
  const std::size_t bytes = statistics * size_of(key_.statistics_type);
  key_.problem.outputs.for_each([&](const Output port) {
    if (is_tensor(port)) return;
    if (port == Output::running_mean) {
      std::memcpy(ports.out[port], ports.in[Input::mean], bytes);
    } else if (port == Output::running_variance) {
      std::memcpy(ports.out[port], ports.in[Input::variance], bytes);
    } else {
      std::memset(ports.out[port], 0, bytes);
    }
  });
  if (key_.problem.pass == Pass::reduce) {
    for (double* const sums : {ports.sums.first, ports.sums.second}) {
      std::fill_n(sums, statistics, 0.0);
    }
  }
}

void Plan::execute(const Ports& ports) const {
  const Geometry& geometry = key_.problem.geometry;
  const Pass pass = key_.problem.pass;
  const auto statistics = static_cast<std::size_t>(geometry.channels);
  if (pass == Pass::reduce) *ports.sums.count = static_cast<double>(geometry.per_channel());
  // The statistics of an empty part are those of the other parts.
  const bool other_parts = pass == Pass::apply && *ports.sums.count > 0 && statistics > 0;
  if (geometry.elements() == 0 && !other_parts) return write_empty(ports);
  if (key_.statistics_type == DataType::f32) return run(ports);
  run_in_f32(ports, key_.statistics_type, statistics,
             [this](const Ports& f32_ports) { run(f32_ports); });
}

}  // namespace onedsl
