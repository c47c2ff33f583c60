#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "ports.hpp"
#include "types.hpp"

namespace onedsl {

// An op of oneDNN's Graph API, or a fusion of one with an activation: an enumerator, and a row of
// `signatures::all`. CONTRIBUTING.md lists what else a new operation needs.
enum class Operation : std::uint8_t {
  training_backward,
  forward_training,
  act_forward_training,
  act_training_backward,
};

// The ports of an operation. Calls pass them in the order of the enumerators in ports.hpp.
struct Signature {
  const char* id;              // the enumerator's name, by which Python knows the operation
  const char* name;            // oneDNN's name of the op or ops
  InputSet inputs;             // all inputs, the optional ones included
  InputSet optional_inputs;    // a call may omit them
  OutputSet outputs;           // all outputs
  OutputSet required_outputs;  // a call computes either all outputs or only these
  Output result;               // the main one; may be the same memory as ...
  Input in_place_input;        // ... this input; no other output may overlap an input
  InputSet reduce_inputs;      // inputs of the reduce pass
  InputSet all_or_none = {};   // optional inputs that a call passes together or not at all
  // Optional inputs of which a call passes one at most; optional outputs need one.
  InputSet alternatives = {};

  constexpr bool is_forward() const noexcept { return outputs.has(Output::dst); }
};

namespace signatures {

constexpr InputSet gradient_inputs(Input::src, Input::diff_dst, Input::mean, Input::variance,
                                   Input::gamma);
constexpr OutputSet gradients(Output::diff_src, Output::diff_gamma, Output::diff_beta);
constexpr InputSet forward_inputs(Input::src, Input::mean, Input::variance, Input::gamma,
                                  Input::beta);
constexpr InputSet affine(Input::gamma, Input::beta);
constexpr InputSet argument_or_result(Input::residual, Input::dst);
constexpr InputSet gradient_reduce_inputs(Input::src, Input::diff_dst, Input::mean,
                                          Input::variance);
constexpr InputSet forward_reduce_inputs(Input::src);
constexpr OutputSet forward_outputs(Output::dst, Output::running_mean, Output::running_variance,
                                    Output::batch_mean, Output::batch_variance);

// Indexed by Operation.
constexpr std::array all = {
    Signature{"training_backward", "BatchNormTrainingBackward", gradient_inputs,
              InputSet(Input::gamma), gradients, OutputSet(Output::diff_src), Output::diff_src,
              Input::diff_dst, gradient_reduce_inputs},
    Signature{"forward_training", "BatchNormForwardTraining", forward_inputs, affine,
              forward_outputs, forward_outputs, Output::dst, Input::src, forward_reduce_inputs,
              affine},
    Signature{"act_forward_training", "BatchNormForwardTraining and activation",
              forward_inputs.with(Input::residual), affine.with(Input::residual), forward_outputs,
              forward_outputs, Output::dst, Input::src, forward_reduce_inputs, affine},
    // The activation's argument is recomputed from src, and from residual if one was added. Or the
    // derivative is read from dst, see Attributes::derivative_follows_from_dst().
    Signature{"act_training_backward", "activation's gradient and BatchNormTrainingBackward",
              gradient_inputs.with(Input::beta) | argument_or_result, affine | argument_or_result,
              gradients.with(Output::diff_residual), gradients, Output::diff_src, Input::diff_dst,
              gradient_reduce_inputs | affine | argument_or_result, affine, argument_or_result},
};

}  // namespace signatures

constexpr const Signature& signature_of(const Operation operation) noexcept {
  return signatures::all[static_cast<std::size_t>(operation)];
}

// Returns the operation of an id, nullopt if there is none.
constexpr std::optional<Operation> operation_of(const std::string_view id) noexcept {
  for (std::size_t i = 0; i < signatures::all.size(); ++i) {
    if (id == signatures::all[i].id) return static_cast<Operation>(i);
  }
  return std::nullopt;
}

}  // namespace onedsl
