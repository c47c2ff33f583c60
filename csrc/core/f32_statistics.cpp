#include "f32_statistics.hpp"

#include <algorithm>
#include <cstdint>

#include "convert_16bit.hpp"

namespace onedsl {
namespace {

template <class Port, class Pointer, class Function>
void for_each_statistic(const PerPort<Port, Pointer>& ports, const Function& function) {
  for (std::size_t i = 0; i < num_ports(Port{}); ++i) {
    const auto port = static_cast<Port>(i);
    if (!is_tensor(port) && ports[port] != nullptr) function(port);
  }
}

}  // namespace

F32Statistics::F32Statistics(const Ports& ports, const DataType type, const std::size_t count)
    : ports_(ports), f32_ports_(ports), type_(type), count_(count) {
  std::size_t present = 0;
  for_each_statistic(ports.in, [&](Input) { ++present; });
  for_each_statistic(ports.out, [&](Output) { ++present; });
  values_.resize(present * count);
  float* next = values_.data();
  for_each_statistic(ports.in, [&](const Input port) {
    const auto* const from = static_cast<const std::uint16_t*>(ports.in[port]);
    std::transform(from, from + count, next, type == DataType::bf16 ? bf16_to_f32 : f16_to_f32);
    f32_ports_.in[port] = next;
    next += count;
  });
  for_each_statistic(ports.out, [&](const Output port) {
    f32_ports_.out[port] = next;
    next += count;
  });
}

void F32Statistics::write_results() const {
  for_each_statistic(f32_ports_.out, [&](const Output port) {
    const auto* const from = static_cast<const float*>(f32_ports_.out[port]);
    std::transform(from, from + count_, static_cast<std::uint16_t*>(ports_.out[port]),
                   type_ == DataType::bf16 ? f32_to_bf16 : f32_to_f16);
  });
}

}  // namespace onedsl
