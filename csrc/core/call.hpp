#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "activation.hpp"
#include "geometry.hpp"
#include "operation.hpp"
#include "pitch.hpp"
#include "pointers.hpp"
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
  // The running variance is updated with the batch's unbiased variance, as in PyTorch.
  bool unbiased = false;
  // What follows batch norm, and its parameter, which is not read if it has none.
  Activation activation = Activation::none;
  double parameter = 0;

  void set_activation(const Activation own, const std::optional<double> own_parameter) noexcept {
    activation = own;
    parameter = own_parameter.value_or(info_of(own).parameter_default);
  }

  // Whether the derivative of the activation at y is that at its result.
  bool derivative_follows_from_dst() const noexcept {
    return activation == Activation::relu ||
           (activation == Activation::leaky_relu && parameter > 0);
  }
};

inline bool is_valid_epsilon(const double epsilon) noexcept {
  return positive_limits.first < epsilon && epsilon < positive_limits.second;
}

// A configured operation: everything that does not depend on the arrays.
struct OpConfig {
  Operation operation = Operation::training_backward;
  Attributes attributes;
  StatisticsKind statistics_kind = StatisticsKind::batch;
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
  Pitches pitches;
  // The strides in elements of tensors that are allocated. Empty: those of src, which is dense.
  std::vector<std::ptrdiff_t> dense_strides = {};
  // The tensors of which the adapter made copies before the call, or writes copies after it,
  // because the kernels cannot read their layouts. For the run log.
  InputSet copied_inputs = {};
  OutputSet copied_outputs = {};

  // Of calls that have them; without, std::bad_optional_access.
  // NOLINTBEGIN(bugprone-unchecked-optional-access)
  const View& src() const { return in[Input::src].value(); }
  const View& mean() const { return in[Input::mean].value(); }
  // NOLINTEND(bugprone-unchecked-optional-access)
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
