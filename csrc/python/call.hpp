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
#include "../plan/plan.hpp"
#include "arrays.hpp"

// Calls from Python, checked for memory safety: shapes, types, layouts and overlaps fit each other.
// Nothing here has words for a mistake: Python's onedsl/operators/_validation.py does.
namespace onedsl {

// Whose shape the statistics have. `channel`: one axis (a vector), at index 1 or the last.
// `broadcast`: src's rank, each size src's or 1.
enum class StatisticsShape : std::uint8_t { channel_second, channel_last, broadcast };

// What Python's dialects say of an operator.
struct OpSchema {
  Operation operation = Operation::training_backward;
  Attributes attributes;
  Statistics statistics = Statistics::batch;
  VarianceKind variance_kind = VarianceKind::variance;
  StatisticsShape statistics_shape = StatisticsShape::channel_last;
  std::vector<std::pair<DataType, DataType>> types;  // of the tensors, and of the statistics
  std::pair<pybind11::ssize_t, pybind11::ssize_t> ranks = {1, max_rank};
  RequiresGrad requires_grad = RequiresGrad::rejected;
};

// One call's arrays, port by port; nothing where an optional input is absent or an output is not
// given.
struct Call {
  Geometry geometry;
  PerPort<Input, std::optional<View>> in;
  PerPort<Output, std::optional<View>> out;

  const View& src() const { return *in[Input::src]; }
  InputSet given() const;
  const View& mean() const { return *in[Input::mean]; }
};

// A count, and behind it the two numbers of each statistic, all first ones first: see Sums.
using DoubleVector = pybind11::array_t<double, pybind11::array::c_style>;

// Whether a plan can use an array's memory as it lies, if these axes have statistics.
bool is_dense(pybind11::handle array, KeptAxes kept);

class Operator {
 public:
  explicit Operator(OpSchema schema);

  const OpSchema& schema() const noexcept { return schema_; }
  const Signature& signature() const noexcept { return signature_of(schema_.operation); }

  // Takes a tuple of inputs and one of outputs, or None. Gives a tuple of outputs, or None where
  // any argument is not plainly right.
  pybind11::object run(const pybind11::tuple& inputs, bool all_outputs, const pybind11::object& out,
                       BackendChoice backend) const;

  // The two halves of a run, by onedsl's own kernels. The first takes those inputs that it needs,
  // and gives a DoubleVector. The second takes the sum of such vectors, and all that run() takes.
  pybind11::object reduce(const pybind11::tuple& inputs) const;
  pybind11::object apply(const DoubleVector& vector, const pybind11::tuple& inputs,
                         bool all_outputs, const pybind11::object& out) const;

  // The parts of a call, for Compiled.
  OutputSet outputs(bool all) const { return all ? signature().outputs : signature().required; }
  std::optional<Geometry> geometry_of(const View& src, const View* mean) const;
  std::optional<Call> check(const pybind11::tuple& inputs, InputSet taken, OutputSet outputs,
                            const pybind11::object& out) const;
  PlanKey key(const Geometry& geometry, DataType data, DataType statistics, InputSet given,
              OutputSet outputs, BackendChoice backend, Pass pass) const;

 private:
  void execute(const Call& call, OutputSet outputs, BackendChoice backend, Pass pass,
               const Ports& ports) const;
  bool check_outputs(Call& call, OutputSet outputs, const pybind11::object& out) const;
  bool overlaps_inputs(const Call& call, Output port) const;
  std::optional<KeptAxes> kept_axes(const View& src, const View* mean) const;

  OpSchema schema_;
};

// An operator bound to one src, by shape, strides and type, and to the plan for it.
class Compiled {
 public:
  using Sizes = std::vector<pybind11::ssize_t>;

  // What a View is without its data.
  struct Layout {
    DataType type;
    Sizes shape, strides;  // in bytes

    View view() const;
  };

  // Touches no Python object, and takes oneDNN a millisecond.
  Compiled(Operator op, Layout src, DataType statistics, Sizes stats_shape, std::uint32_t given,
           bool all_outputs, BackendChoice backend);

  pybind11::object run(const pybind11::tuple& inputs, const pybind11::object& out) const;

  // The plan of this process: in one that was forked off since, another than before.
  std::shared_ptr<const Plan> plan() const;

 private:
  Operator op_;
  Layout src_, mean_;
  InputSet given_;
  OutputSet outputs_;
  std::shared_ptr<const Plan> plan_;
};

}  // namespace onedsl
