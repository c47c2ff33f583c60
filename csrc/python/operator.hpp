#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../core/check.hpp"
#include "../core/run_log.hpp"
#include "../onednn/runnable_graph.hpp"
#include "arrays.hpp"

// Calls from Python. A call whose arguments are invalid returns a Rejection, for which
// onedsl/operators/validation.py has the message.
namespace onedsl {

// The operator schema of onedsl/operators/schema.py.
struct OpSchema {
  OpConfig config;
  CallRules rules;
  LogNames names;
  pybind11::object result;  // the tuple class of the outputs
};

// A Rejection with the operator's names of the ports: "src", "out.diff_src".
struct NamedRejection {
  const char* reason;
  std::string port, other;
  std::vector<std::string> to_copy;
};

// Totals as one vector: the count, the first number of every statistic, the second ones.
using DoubleVector = pybind11::array_t<double, pybind11::array::c_style>;

// A call with copies of its arrays' sizes.
struct PythonCall : Call {
  using Call::Call;
  KeptSizes<num_ports(Input{}) + num_ports(Output{})> sizes;
};

class Operator {
 public:
  explicit Operator(OpSchema schema);

  // Runs onedsl's kernels. Takes a tuple of inputs, whether to compute all outputs, and a tuple of
  // outputs or None. Returns the outputs, as the following functions too, or a NamedRejection.
  // `results_like` is None or the caller's first input, if that of `inputs` is a NumPy view of it.
  pybind11::object run(const pybind11::tuple& inputs, bool all_outputs, const pybind11::object& out,
                       pybind11::handle results_like) const;

  // The two passes of a run. reduce() takes the reduce_inputs of the signature and returns a
  // DoubleVector; apply() takes the merged totals of all parts.
  pybind11::object reduce(const pybind11::tuple& inputs) const;
  pybind11::object apply(const DoubleVector& totals, const pybind11::tuple& inputs,
                         bool all_outputs, const pybind11::object& out,
                         pybind11::handle results_like) const;

  // Returns the description of a call, from which a graph for it is compiled: the type, shape and
  // strides of src, the type of statistics, and which inputs are given; or None if the tensors are
  // empty, because oneDNN does not write all outputs of those.
  pybind11::object describe(const pybind11::tuple& inputs, bool all_outputs,
                            const pybind11::object& out) const;
  // Runs a graph that was compiled for a call of this description, whose ports are those of the
  // call in order. The call is checked: another thread may have changed its arrays since.
  pybind11::object run_graph(RunnableGraph& graph, const pybind11::tuple& description,
                             const pybind11::tuple& inputs, bool all_outputs,
                             const pybind11::object& out, pybind11::handle results_like) const;
  // Returns None or the rejection of a call that passes all inputs and computes all outputs, with
  // arrays of these types and shapes. Inputs without a description are absent.
  pybind11::object check_shapes(const std::vector<std::optional<ArrayInfo>>& inputs) const;

  // Returns a call, without arrays, that passes all inputs and computes all outputs; nullopt if the
  // kernels cannot run it.
  std::optional<Call> call_with(const View& src, DataType statistics_type) const;
  const Signature& signature() const noexcept { return signature_of(schema_.config.operation); }

 private:
  OutputSet outputs(bool all) const {
    return all ? signature().outputs : signature().required_outputs;
  }
  pybind11::object rejected(const Rejection& rejection) const;
  // Fills in the arrays of a call, and checks it.
  std::optional<Rejection> fill(PythonCall& call, const CallRules& rules,
                                const pybind11::tuple& inputs, OutputSet outputs,
                                const pybind11::object& out) const;
  // Calls run(pointers) without the GIL, and returns the outputs. Allocated ones are arrays of the
  // library of `results_like`.
  template <class Run>
  pybind11::object execute(const Call& call, pybind11::handle results_like,
                           const pybind11::object& out, const Totals& totals, const Run& run) const;
  pybind11::object execute(const Call& call, pybind11::handle results_like,
                           const pybind11::object& out, const Totals& totals = {}) const;
  // Returns what the graph of a call depends on: dtype, shape, strides in elements, dtype of the
  // statistics, and which inputs are given.
  pybind11::tuple description_of(const Call& call) const;

  OpSchema schema_;
  CallRules graph_rules_;  // of calls that run oneDNN's graphs
};

}  // namespace onedsl
