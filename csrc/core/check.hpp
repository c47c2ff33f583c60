#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "call.hpp"
#include "types.hpp"

// The check of a call, whoever makes it: types, shapes, memory layouts and overlaps. It is what
// memory safety rests on. Callers convert their arrays to Views. onedsl/operators/validation.py
// has the messages of a Rejection for Python, with what the arrays are; the other callers use
// `unsupported`.
namespace onedsl {

// Why a call is rejected. In the comments, "like" means like the first array of the same kind, of
// tensors or of channel vectors (ports.hpp).
enum class Reason : std::uint8_t {
  epsilon,          // not positive and finite in f32
  not_an_array,     // the caller has no View of it
  absent,           // a required input
  all_or_none,      // an input that is passed only together with the others of a set
  alternatives,     // an input that is passed only without another one
  one_of,           // an output that needs one of several inputs
  activation,       // an input that this activation's derivative does not follow from
  rank,             // of src
  type,             // of src
  size,             // of src: more than max_tensor_bytes
  statistics_type,  // not supported with src's type; without a port: of resulting statistics
  statistics_shape,
  like_type,
  like_shape,
  ignored,     // an input that the call would ignore
  few_values,  // per channel
  memory,      // less than the shape and the strides describe
  layout,      // strides that are not supported
  outputs,     // the caller's outputs are not one for each that is computed
  not_aligned,
  read_only,  // an output
  overlap,    // an output and another array, or the output's own elements
  totals_channels,
  totals_count,
  graph,  // was compiled for another call
};

constexpr const char* name_of(const Reason reason) noexcept {
  constexpr std::array names = {
      "epsilon",      "not_an_array", "absent",          "all_or_none",
      "alternatives", "one_of",       "activation",      "rank",
      "type",         "size",         "statistics_type", "statistics_shape",
      "like_type",    "like_shape",   "ignored",         "few_values",
      "memory",       "layout",       "outputs",         "not_aligned",
      "read_only",    "overlap",      "totals_channels", "totals_count",
      "graph"};
  return names[static_cast<std::size_t>(reason)];
}

// An input, an output, or none.
struct AnyPort {
  constexpr AnyPort() noexcept = default;
  constexpr AnyPort(const Input port) noexcept  // NOLINT(google-explicit-constructor)
      : kind(input), index(static_cast<std::uint8_t>(port)) {}
  constexpr AnyPort(const Output port) noexcept  // NOLINT(google-explicit-constructor)
      : kind(output), index(static_cast<std::uint8_t>(port)) {}

  enum Kind : std::uint8_t { none, input, output } kind = none;
  std::uint8_t index = 0;

  // Calls function(port) with an Input or an Output.
  template <class Function>
  constexpr auto visit(const Function& function) const {
    return kind == input ? function(static_cast<Input>(index))
                         : function(static_cast<Output>(index));
  }
};

struct Rejection {
  Reason reason;
  AnyPort port = {};
  AnyPort other = {};
  // The inputs of which dense, aligned copies repair a call.
  InputSet to_copy = {};
};

// What a caller supports.
struct CallRules {
  TypePairs types;
  std::pair<std::ptrdiff_t, std::ptrdiff_t> ranks = {1, max_rank};
  // The axis of src along which the statistics are a vector, negative ones from the end. nullopt:
  // they have src's rank, each size being src's or 1.
  std::optional<std::ptrdiff_t> channel_axis;
  InputSet optional;      // inputs that a call may omit
  InputSet all_or_none;   // of them, passed together or not at all, unless there is dst
  InputSet alternatives;  // of them, at most one is passed
  // If the operation has alternatives, its optional outputs need one.
  bool outputs_need_alternative = true;
  std::optional<Input> ignored;  // unless all outputs are computed
  std::int64_t min_values = 0;   // per channel
  // Tensors may have any strides of whole elements, and a src any for which there is a memory
  // order. Otherwise they must be dense, and have src's strides.
  bool strided_tensors = false;
  // The type of resulting statistics if no statistic is passed: src's type, or f32.
  bool statistics_like_src = false;
  // Outputs that may be the same memory as an input. No other output may overlap an input.
  PerPort<Output, std::optional<Input>> in_place;

  // The rules that follow from the operation alone.
  static CallRules of(const Signature& signature) noexcept {
    CallRules rules;
    for (const TypePair& pair : supported_types) rules.types.add(pair);
    rules.optional = signature.optional_inputs;
    rules.all_or_none = signature.all_or_none;
    rules.alternatives = signature.alternatives;
    rules.in_place[signature.result] = signature.in_place_input;
    return rules;
  }
};

// Checks a call, and completes it or returns why it is rejected. A rejection that a copy of an
// input repairs comes last.
std::optional<Rejection> check(const CallRules& rules, Call& call);

// Returns what a rejected call has that onedsl does not support, without values: reports count
// calls by this text. `only_f32`: the caller's parameters and statistics must be f32.
const char* unsupported(const Rejection& rejection, bool only_f32 = true) noexcept;

// Type and shape of an array.
using ArrayInfo = std::pair<DataType, std::vector<std::ptrdiff_t>>;

// Checks a call that passes all inputs and computes all outputs, with dense arrays of these types
// and shapes. Inputs without a description are absent.
std::optional<Rejection> check_shapes(const CallRules& rules, const OpConfig& config,
                                      const std::vector<std::optional<ArrayInfo>>& inputs);

}  // namespace onedsl
