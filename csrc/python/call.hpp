#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "../core/geometry.hpp"
#include "../core/problem.hpp"
#include "../plan/run_log.hpp"
#include "arrays.hpp"

// Validated calls from Python: types, shapes, layouts and overlaps are checked for memory safety.
// Invalid arguments are rejected by returning None; onedsl/operators/_validation.py then raises an
// exception that describes the error.
namespace onedsl {

// The operator schema of onedsl/operators/_schema.py.
struct OpSchema {
  OpConfig config;
  // The axis of src along which the statistics are a vector, negative ones from the end. nullopt:
  // they have src's rank, each size being src's or 1.
  std::optional<pybind11::ssize_t> channel_axis;
  std::vector<TypePair> types;
  std::pair<pybind11::ssize_t, pybind11::ssize_t> ranks = {1, max_rank};
  LogNames names = {};
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

  const OpSchema& schema() const noexcept { return schema_; }
  const Signature& signature() const noexcept { return signature_of(schema_.config.operation); }

  // Takes a tuple of inputs, and a tuple of outputs or None. Returns a tuple of outputs, or None if
  // an argument is invalid.
  pybind11::object run(const pybind11::tuple& inputs, bool all_outputs, const pybind11::object& out,
                       bool onednn) const;

  // The two passes of a run, by onedsl's kernels. reduce() takes the reduce_inputs of the signature
  // and returns a DoubleVector; apply() takes the sum of the vectors of all parts. Both return None
  // if an argument is invalid.
  pybind11::object reduce(const pybind11::tuple& inputs) const;
  pybind11::object apply(const DoubleVector& sums, const pybind11::tuple& inputs, bool all_outputs,
                         const pybind11::object& out) const;

  // The steps of run(), for Compiled.
  OutputSet outputs(bool all) const { return all ? signature().outputs : signature().required; }
  std::optional<Geometry> geometry_of(const View& src, const View* mean) const;
  // Fills an empty call. Returns false if an argument is invalid.
  bool check(Call& call, const pybind11::tuple& inputs, InputSet expected, OutputSet outputs,
             const pybind11::object& out) const;
  // Executes the plan that find() returns, which runs without the GIL.
  template <class Find>
  pybind11::object execute(const Call& call, const Sums& sums, const Find& find) const;

 private:
  pybind11::object execute(const Call& call, bool onednn, Pass pass, const Sums& sums) const;
  bool check_outputs(Call& call) const;
  std::optional<ChannelAxes> channel_axes(const View& src, const View* mean) const;

  OpSchema schema_;
};

// An operator with the plan for one shape, memory order and type of src.
class Compiled {
 public:
  using Sizes = std::vector<pybind11::ssize_t>;

  // A View without data.
  struct Layout {
    DataType type;
    Sizes shape, strides;  // strides in bytes

    View view() const;
  };

  // Uses no Python objects. `given`: bit i is input i of the signature.
  Compiled(Operator op, Layout src, DataType statistics, Sizes stats_shape, std::uint32_t given,
           bool all_outputs, bool onednn);

  pybind11::object run(const pybind11::tuple& inputs, const pybind11::object& out) const;

  // The plan of this process: a forked child makes its own.
  std::shared_ptr<const Plan> plan() const;

 private:
  Operator op_;
  Layout src_, mean_;
  InputSet given_;
  OutputSet outputs_;
  std::shared_ptr<const Plan> plan_;
};

// Registers Operator, Compiled, and functions for signatures and the plan cache.
void bind_operator(pybind11::module_& module);

}  // namespace onedsl
