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

F32Statistics::F32Statistics(const Ports& narrow, const DataType type, const std::size_t statistics)
    : narrow_(narrow), wide_(narrow), type_(type), statistics_(statistics) {
  std::size_t present = 0;
  for_each_statistic(narrow.in, [&](Input) { ++present; });
  for_each_statistic(narrow.out, [&](Output) { ++present; });
  values_.resize(present * statistics);
  float* next = values_.data();
  for_each_statistic(narrow.in, [&](const Input port) {
    const auto* const from = static_cast<const std::uint16_t*>(narrow.in[port]);
    std::transform(from, from + statistics, next, type == DataType::bf16 ? bf16_to_f32 : f16_to_f32);
    wide_.in[port] = next;
    next += statistics;
  });
  for_each_statistic(narrow.out, [&](const Output port) {
    wide_.out[port] = next;
    next += statistics;
  });
}

void F32Statistics::narrow_results() const {
  for_each_statistic(wide_.out, [&](const Output port) {
    const auto* const from = static_cast<const float*>(wide_.out[port]);
    std::transform(from, from + statistics_, static_cast<std::uint16_t*>(narrow_.out[port]),
                   type_ == DataType::bf16 ? f32_to_bf16 : f32_to_f16);
  });
}

}  // namespace onedsl
