#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

// The inputs and outputs ("ports") of all operations, named as in oneDNN's documentation. Every
// layer indexes them by these enumerators.
namespace onedsl {

enum class Input : std::uint8_t { src, diff_dst, mean, variance, gamma, beta, residual, dst };
enum class Output : std::uint8_t {
  dst,
  diff_src,
  diff_gamma,
  diff_beta,
  diff_residual,
  running_mean,
  running_variance,
  batch_mean,
  batch_variance
};

constexpr std::array input_names = {"src",   "diff_dst", "mean",     "variance",
                                    "gamma", "beta",     "residual", "dst"};
constexpr std::array output_names = {
    "dst",          "diff_src",         "diff_gamma", "diff_beta",     "diff_residual",
    "running_mean", "running_variance", "batch_mean", "batch_variance"};

constexpr std::size_t num_ports(Input) noexcept { return input_names.size(); }
constexpr std::size_t num_ports(Output) noexcept { return output_names.size(); }

constexpr const char* name_of(const Input port) noexcept {
  return input_names[static_cast<std::size_t>(port)];
}
constexpr const char* name_of(const Output port) noexcept {
  return output_names[static_cast<std::size_t>(port)];
}

// An array indexed by port. Always inlined, because kernels of all instruction sets compile it.
template <class Port, class T>
class PerPort {
 public:
  [[gnu::always_inline]] constexpr T& operator[](const Port port) noexcept {
    return items_[static_cast<std::size_t>(port)];
  }
  [[gnu::always_inline]] constexpr const T& operator[](const Port port) const noexcept {
    return items_[static_cast<std::size_t>(port)];
  }

 private:
  T items_[num_ports(Port{})] = {};
};

// A set of ports.
template <class Port>
class PortSet {
 public:
  constexpr PortSet() noexcept = default;
  template <class... Ports>
  constexpr explicit PortSet(const Port first, const Ports... more) noexcept
      : bits_((bit(first) | ... | bit(more))) {}

  constexpr bool has(const Port port) const noexcept { return (bits_ & bit(port)) != 0; }
  constexpr void add(const Port port) noexcept { bits_ |= bit(port); }
  constexpr PortSet with(const Port port) const noexcept {
    PortSet more = *this;
    more.add(port);
    return more;
  }
  constexpr std::size_t count() const noexcept {
    return static_cast<std::size_t>(__builtin_popcount(bits_));
  }
  // Call predicate(port) for each port, in the order of the enumerators, until one returns false.
  // Return whether all of them returned true.
  template <class Predicate>
  constexpr bool all_of(const Predicate& predicate) const {
    for (std::uint32_t left = bits_; left != 0; left &= left - 1) {
      if (!predicate(static_cast<Port>(__builtin_ctz(left)))) return false;
    }
    return true;
  }
  // Call function(port) for each port, in the order of the enumerators.
  template <class Function>
  constexpr void for_each(const Function& function) const {
    all_of([&](const Port port) {
      function(port);
      return true;
    });
  }
  constexpr bool empty() const noexcept { return bits_ == 0; }

  friend constexpr PortSet operator&(PortSet a, const PortSet b) noexcept {
    a.bits_ &= b.bits_;
    return a;
  }
  friend constexpr PortSet operator|(PortSet a, const PortSet b) noexcept {
    a.bits_ |= b.bits_;
    return a;
  }
  friend constexpr PortSet operator-(PortSet a, const PortSet b) noexcept {
    a.bits_ &= ~b.bits_;
    return a;
  }
  friend constexpr bool operator==(const PortSet a, const PortSet b) noexcept {
    return a.bits_ == b.bits_;
  }

 private:
  static constexpr std::uint32_t bit(const Port port) noexcept {
    return 1U << static_cast<unsigned>(port);
  }

  std::uint32_t bits_ = 0;
};

using InputSet = PortSet<Input>;
using OutputSet = PortSet<Output>;

// Tensors have the shape and type of src. All other ports, statistics and parameters, are channel
// vectors: one value per channel, with the shape and type of mean.
constexpr InputSet input_tensors(Input::src, Input::diff_dst, Input::residual, Input::dst);
constexpr OutputSet output_tensors(Output::dst, Output::diff_src, Output::diff_residual);
constexpr bool is_tensor(const Input port) noexcept { return input_tensors.has(port); }
constexpr bool is_tensor(const Output port) noexcept { return output_tensors.has(port); }

// Return the input of which an output is the updated value.
constexpr std::optional<Input> updated_input(const Output port) noexcept {
  if (port == Output::running_mean) return Input::mean;
  if (port == Output::running_variance) return Input::variance;
  return std::nullopt;
}

// Return the ports whose item is not null.
template <class Port, class T>
constexpr PortSet<Port> present(const PerPort<Port, T>& items) noexcept {
  PortSet<Port> ports;
  for (std::size_t i = 0; i < num_ports(Port{}); ++i) {
    if (items[static_cast<Port>(i)]) ports.add(static_cast<Port>(i));
  }
  return ports;
}

// The result of the reduce pass and an input of the apply pass: the number of elements per
// statistic, and two numbers for each statistic. In the gradient these are the sums of diff_dst and
// of diff_dst * xhat; in the forward pass the mean and the sum of squared deviations from it.
struct Totals {
  double* count = nullptr;
  double* first = nullptr;
  double* second = nullptr;
};

// The totals in one vector of 1 + 2 * channels elements.
constexpr Totals totals_in(double* const vector, const std::ptrdiff_t channels) noexcept {
  return {vector, vector + 1, vector + 1 + channels};
}

// The memory of one run. A pointer is null if the optional input is absent or the output is not
// computed; the pointers of `totals` are null if one run does both passes.
struct Pointers {
  PerPort<Input, const void*> in;
  PerPort<Output, void*> out;
  Totals totals;
  // The outputs are memory that the caller provides, which need not be in a cache. False if they
  // have just been allocated: allocators return recently used memory first.
  bool cold_outputs = false;
};

}  // namespace onedsl
