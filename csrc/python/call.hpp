#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../core/geometry.hpp"
#include "../core/problem.hpp"
#include "../core/run_log.hpp"
#include "../onednn/graph.hpp"
#include "arrays.hpp"

// Validated calls from Python: types, shapes, layouts and overlaps are checked for memory safety.
// Invalid arguments are rejected by returning None; onedsl/operators/validation.py then raises an
// exception that describes the error.
namespace onedsl {

// The operator schema of onedsl/operators/schema.py.
struct OpSchema {
  OpConfig config;
  // The axis of src along which the statistics are a vector, negative ones from the end. nullopt:
  // they have src's rank, each size being src's or 1.
  std::optional<pybind11::ssize_t> channel_axis;
  std::vector<TypePair> types;
  std::pair<pybind11::ssize_t, pybind11::ssize_t> ranks = {1, max_rank};
  LogNames names;
  std::optional<Input> ignored;  // unless all outputs are computed: a call must not pass it then
  pybind11::object result;       // the tuple class of the outputs
};

// The arrays of one call; nullopt for absent optional inputs and for outputs that are not passed.
struct Call {
  pybind11::handle first;    // the first input, as the caller passed it
  pybind11::handle results;  // a tuple of outputs, as the caller passed it, or None
  InputSet given;
  OutputSet outputs;  // to compute
  Geometry geometry;
  PerPort<Input, std::optional<View>> in;
  PerPort<Output, std::optional<View>> out;

  const View& src() const { return *in[Input::src]; }
  const View& mean() const { return *in[Input::mean]; }
};

// Sums as one vector: the count, the first number of every statistic, the second ones.
using DoubleVector = pybind11::array_t<double, pybind11::array::c_style>;

// Returns whether an array is dense in any order of its axes.
bool is_dense(pybind11::handle array);

class Operator {
 public:
  explicit Operator(OpSchema schema);

  // Runs onedsl's kernels. Takes a tuple of inputs, the value of the option `outputs` (of an
  // operator without this option: whether to compute all outputs), a tuple of outputs or None, and
  // the value of the option `backend`. Returns the outputs, or None if an argument is invalid or
  // the backend is oneDNN.
  pybind11::object run(const pybind11::tuple& inputs, const pybind11::object& outputs,
                       const pybind11::object& out, const pybind11::object& backend) const;

  // The two passes of a run. reduce() takes the reduce_inputs of the signature and returns a
  // DoubleVector; apply() takes the sum of the vectors of all parts. Both return None if an
  // argument is invalid.
  pybind11::object reduce(const pybind11::tuple& inputs) const;
  pybind11::object apply(const DoubleVector& sums, const pybind11::tuple& inputs,
                         const pybind11::object& outputs, const pybind11::object& out) const;

  // Returns what the graph of a call depends on: dtype, shape, strides in elements, dtype of the
  // statistics, and which inputs are given. None if an argument is invalid.
  pybind11::object describe(const pybind11::tuple& inputs, bool all_outputs) const;
  // Runs a graph that was compiled for such a call, whose ports are those of the call in order.
  pybind11::object run_graph(onednn::CompiledGraph& graph, const pybind11::tuple& inputs,
                             bool all_outputs, const pybind11::object& out) const;

  // Returns the problem of calls that pass all inputs and compute all outputs, nullopt if the
  // kernels cannot run it.
  std::optional<Problem> problem(const View& src, DataType statistics) const;
  const Signature& signature() const noexcept { return signature_of(schema_.config.operation); }

 private:
  OutputSet outputs(bool all) const { return all ? signature().outputs : signature().required; }
  std::optional<OutputSet> parse_outputs(pybind11::handle option) const;
  std::optional<ChannelAxes> channel_axes(const View& src, const View* mean) const;
  std::optional<Geometry> geometry_of(const View& src, const View* mean) const;
  // Fills an empty call. Returns false if an argument is invalid.
  bool check(Call& call, const pybind11::tuple& inputs, InputSet expected, OutputSet outputs,
             const pybind11::object& out) const;
  bool check_outputs(Call& call) const;
  // Calls run(ports) without the GIL, and returns the outputs.
  template <class Run>
  pybind11::object execute(const Call& call, const Sums& sums, const Run& run) const;
  pybind11::object execute(const Call& call, Pass pass, const Sums& sums) const;

  OpSchema schema_;
  std::string required_;  // the value of `outputs` for the required output alone; empty without it
};

}  // namespace onedsl
