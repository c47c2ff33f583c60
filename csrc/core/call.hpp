#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "geometry.hpp"
#include "layout.hpp"
#include "operation.hpp"
#include "ports.hpp"
#include "types.hpp"
#include "view.hpp"

namespace onedsl {

// Numeric attributes of an operation.
struct Attributes {
  double epsilon = 0;
  // new = momentum * old + (1 - momentum) * batch; without old statistics, new = batch. 0.5 is
  // oneDNN's value for an op without this attribute.
  double momentum = 0.5;
  // Upper bound of the ReLU: 6 for ReLU6.
  double clip = std::numeric_limits<double>::infinity();
  // The running variance is updated with the batch's unbiased variance, as in PyTorch.
  bool unbiased = false;
};

// Numbers between these limits are positive and finite in f32, oneDNN's type of epsilon. Unlike a
// conversion, the limits do not depend on the rounding mode and on whether subnormal numbers are
// flushed.
inline constexpr std::pair<double, double> epsilon_limits(0x1p-150, 0x1.ffffffp127);

inline bool is_valid_epsilon(const double epsilon) noexcept {
  return epsilon_limits.first < epsilon && epsilon < epsilon_limits.second;
}

// A configured operation: everything that does not depend on the arrays.
struct OpConfig {
  Operation operation = Operation::training_backward;
  Attributes attributes;
  Statistics statistics = Statistics::batch;
  VarianceKind variance_kind = VarianceKind::variance;
  Pass pass = Pass::both;

  bool reads_epsilon() const noexcept {
    return signature_of(operation).is_forward() || variance_kind == VarianceKind::variance;
  }
};

// A call of an operation, whoever makes it. An adapter fills in the configuration and the arrays,
// check() finds the rest or rejects the call, and the kernels read it.
struct Call : OpConfig {
  explicit Call(const OpConfig& config)
      : OpConfig(config),
        inputs(signature_of(config.operation).inputs),
        outputs(signature_of(config.operation).outputs) {}

  // The ports: the inputs of the pass, some of which may be absent, and the outputs to compute.
  InputSet inputs;
  OutputSet outputs;
  // The arrays; nullopt for absent inputs, and for outputs that are not computed. Outputs without
  // memory are allocated after the check. If outputs_described is false, all outputs are.
  PerPort<Input, std::optional<View>> in;
  PerPort<Output, std::optional<View>> out;
  bool outputs_described = false;
  bool outputs_match = true;  // they are one array for each that is computed

  // What check() finds.
  InputSet given;  // the inputs that are not absent
  Geometry geometry;
  DataType data = DataType::f32;
  DataType statistics_type = DataType::f32;
  // Null: every tensor is dense in the memory order of src.
  std::shared_ptr<const Layouts> layouts = nullptr;

  // Of calls that have them; without, std::bad_optional_access.
  // NOLINTBEGIN(bugprone-unchecked-optional-access)
  const View& src() const { return in[Input::src].value(); }
  const View& mean() const { return in[Input::mean].value(); }
  // NOLINTEND(bugprone-unchecked-optional-access)
  bool src_is_dense() const { return !layouts || layouts->in[Input::src].empty(); }
};

// Return the memory of a call's arrays.
inline Pointers pointers_of(const Call& call) {
  Pointers pointers;
  call.given.for_each([&](const Input port) { pointers.in[port] = call.in[port]->data; });
  call.outputs.for_each([&](const Output port) {
    if (call.out[port]) pointers.out[port] = call.out[port]->data;
  });
  return pointers;
}

}  // namespace onedsl
