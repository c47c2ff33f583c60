#include <pybind11/native_enum.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "bind.hpp"
#include "dlpack.hpp"
#include "geometry.hpp"
#include "plan.hpp"
#include "threads.hpp"

namespace py = pybind11;

namespace onedsl {
namespace {

// What a caller passed, checked for memory safety: shapes, types, layouts and overlaps fit each
// other. Nothing here has words for a mistake: Python's onedsl/_check.py does.
struct Call {
  Geometry geometry;
  View src, diff_dst, mean, variance;
  std::optional<View> gamma;
  std::optional<View> diff_src, diff_gamma, diff_beta;  // the caller's own, if given
};

// Where a run reads and writes, and what it returns.
struct Results {
  Ports ports;
  py::object arrays;  // a tuple of diff_src, diff_gamma and diff_beta
};

Results prepare(const Call& call, const bool sums, const py::object& out) {
  Results results{{call.src.data, call.diff_dst.data, call.mean.data, call.variance.data,
                   call.gamma ? call.gamma->data : nullptr},
                  out};
  Ports& ports = results.ports;
  if (!out.is_none()) {
    ports.diff_src = call.diff_src->data;
    ports.diff_gamma = sums ? call.diff_gamma->data : nullptr;
    ports.diff_beta = sums ? call.diff_beta->data : nullptr;
    return results;
  }
  py::array diff_src = empty_like(call.src);
  ports.diff_src = diff_src.mutable_data();
  const auto sum = [&](void*& port) -> py::object {
    if (!sums) return py::none();
    py::array array = empty_like(call.mean);
    port = array.mutable_data();
    return array;
  };
  py::object diff_gamma = sum(ports.diff_gamma);
  py::object diff_beta = sum(ports.diff_beta);
  results.arrays = py::make_tuple(std::move(diff_src), std::move(diff_gamma), std::move(diff_beta));
  return results;
}

// `src` is what the caller passed: the results are to be of its kind.
py::object deliver(Results results, const Call& call, const py::handle src) {
  if (!call.src.foreign || call.diff_src) return std::move(results.arrays);
  const auto arrays = py::reinterpret_borrow<py::tuple>(results.arrays);
  const auto exported = [&](const std::size_t i) -> py::object {
    return arrays[i].is_none() ? py::none() : export_array(arrays[i], src);
  };
  return py::make_tuple(exported(0), exported(1), exported(2));
}

std::optional<Geometry> geometry_of(const View& v, const KeptAxes kept) {
  return dense_geometry(v.rank, v.shape, v.strides, v.item_stride,
                        static_cast<py::ssize_t>(size_of(v.type)), kept);
}

bool output_fits(const View& output, const Call& call) {
  if (!output.writeable) return false;
  const bool in_place =
      call.diff_src && &output == &*call.diff_src && output.data == call.diff_dst.data;
  for (const View* input : {&call.src, &call.diff_dst, &call.mean, &call.variance}) {
    if (!(in_place && input == &call.diff_dst) && output.overlaps(*input)) return false;
  }
  return !(call.gamma && output.overlaps(*call.gamma));
}

using Floats = std::vector<float>;

// In double: a float's square may be out of range.
Floats squared_reciprocal(const View& inverse) {
  if (inverse.type != DataType::f32) {
    throw std::invalid_argument("onedsl._core.Operator: an inverse deviation must be f32");
  }
  Floats variance(static_cast<std::size_t>(inverse.size()));
  std::transform(reinterpret_cast<const float*>(inverse.data),
                 reinterpret_cast<const float*>(inverse.data) + variance.size(), variance.begin(),
                 [](const double x) { return static_cast<float>(1 / (x * x)); });
  return variance;
}

// Whose shapes the statistics have. `channel`: one axis (a vector), at index 1 or the last.
// `broadcast`: src's rank, each size src's or 1, and their type src's too.
enum class StatisticsShape { channel_second, channel_last, broadcast };

class Operator {
 public:
  Operator(const double epsilon, const Statistics statistics, const StatisticsShape shape,
           const History history, const bool inverse)
      : epsilon_(epsilon),
        statistics_(statistics),
        shape_(shape),
        history_(history),
        inverse_(inverse) {}

  bool types_fit(const DataType data, const DataType statistics) const {
    if (shape_ == StatisticsShape::broadcast) return statistics == data && data != DataType::bf16;
    return statistics == DataType::f32 || (statistics == DataType::bf16 && data == DataType::bf16);
  }

  // The axes of src that a mean like this one keeps; nothing if it does not fit src.
  std::optional<KeptAxes> kept_axes(const View& src, const View& mean) const {
    if (src.rank < min_rank() || src.rank > max_rank()) return std::nullopt;
    if (shape_ != StatisticsShape::broadcast) {
      const py::ssize_t axis = shape_ == StatisticsShape::channel_second ? 1 : src.rank - 1;
      if (!mean.is_vector(src.shape[axis])) return std::nullopt;
      return KeptAxes{1} << axis;
    }
    if (mean.rank != src.rank) return std::nullopt;
    KeptAxes kept = 0;
    for (py::ssize_t axis = 0; axis < src.rank; ++axis) {
      if (mean.shape[axis] != src.shape[axis] && mean.shape[axis] != 1) return std::nullopt;
      if (mean.shape[axis] != 1) kept |= KeptAxes{1} << axis;
    }
    return kept;
  }

  // Nothing if any argument is not plainly right.
  std::optional<Call> check(const py::handle src, const py::handle diff_dst, const py::handle mean,
                            const py::handle variance, const py::handle gamma, const bool sums,
                            const py::handle out) const {
    const std::optional<View> x = view(src, history_);
    const std::optional<View> dy = view(diff_dst, history_);
    const std::optional<View> mu = view(mean, history_);
    const std::optional<View> var = view(variance, history_);
    if (!x || !dy || !mu || !var || !dy->same_layout(*x)) return std::nullopt;
    const std::optional<KeptAxes> kept = kept_axes(*x, *mu);
    if (!kept) return std::nullopt;
    const std::optional<Geometry> geometry = geometry_of(*x, *kept);
    if (!geometry) return std::nullopt;

    Call call{*geometry, *x, *dy, *mu, *var, {}, {}, {}, {}};
    const auto statistic_fits = [&](const View& v) {
      return v.is_c_contiguous() && v.same_layout(*mu);
    };
    if (!types_fit(x->type, mu->type) || !statistic_fits(*mu) || !statistic_fits(*var)) {
      return std::nullopt;
    }
    if (!gamma.is_none()) {
      call.gamma = view(gamma, history_);
      if (!call.gamma || !statistic_fits(*call.gamma)) return std::nullopt;
    }
    if (out.is_none()) return call;

    if (!PyTuple_Check(out.ptr()) || PyTuple_GET_SIZE(out.ptr()) != 3) return std::nullopt;
    const auto member = [&](const py::ssize_t i) {
      return py::handle(PyTuple_GET_ITEM(out.ptr(), i));
    };
    call.diff_src = view(member(0));
    if (!call.diff_src || !call.diff_src->same_layout(*x) || !output_fits(*call.diff_src, call)) {
      return std::nullopt;
    }
    if (!sums) {
      return member(1).is_none() && member(2).is_none() ? std::make_optional(call) : std::nullopt;
    }
    call.diff_gamma = view(member(1));
    call.diff_beta = view(member(2));
    for (const std::optional<View>& sum : {call.diff_gamma, call.diff_beta}) {
      if (!sum || !statistic_fits(*sum) || !output_fits(*sum, call) ||
          sum->overlaps(*call.diff_src)) {
        return std::nullopt;
      }
    }
    if (call.diff_gamma->overlaps(*call.diff_beta)) return std::nullopt;
    return call;
  }

  std::shared_ptr<const Plan> plan(const Geometry& geometry, const DataType data,
                                   const DataType statistics, const bool sums,
                                   const BackendChoice backend) const {
    PlanKey key;
    key.problem = {geometry, data, statistics_, epsilon_, sums};
    key.statistics_type = statistics;
    key.backend = backend;
    key.num_threads = max_threads();
    key.fork_generation = fork_generation();
    return find_plan(key);
  }

  py::object run(const py::handle src, const py::handle diff_dst, const py::handle mean,
                 const py::handle variance, const py::handle gamma, const bool sums,
                 const py::object& out, const BackendChoice backend) const {
    const std::optional<Call> call = check(src, diff_dst, mean, variance, gamma, sums, out);
    if (!call) return py::none();
    Results results = prepare(*call, sums, out);
    const Floats squared = inverse_ ? squared_reciprocal(call->variance) : Floats{};
    if (inverse_) results.ports.variance = squared.data();
    {
      // Safe without the GIL: plans touch no Python object, and the arrays are kept alive by the
      // caller's frame and by `results`.
      const py::gil_scoped_release release;
      plan(call->geometry, call->src.type, call->mean.type, sums, backend)->execute(results.ports);
    }
    return deliver(std::move(results), *call, src);
  }

 private:
  py::ssize_t min_rank() const { return shape_ == StatisticsShape::broadcast ? 1 : 2; }
  py::ssize_t max_rank() const {
    return shape_ == StatisticsShape::broadcast ? 8 : onedsl::max_rank;  // DirectML's limit
  }

  double epsilon_;
  Statistics statistics_;
  StatisticsShape shape_;
  History history_;
  bool inverse_;  // whether variance is in truth 1 / sqrt(variance + epsilon), and epsilon 0
};

// A View without data.
using Sizes = std::vector<py::ssize_t>;
struct Layout {
  DataType type;
  Sizes shape, strides;

  View view() const {
    View result;
    result.type = type;
    result.rank = static_cast<py::ssize_t>(shape.size());
    result.shape = shape.data();
    result.strides = strides.data();
    result.item_stride = static_cast<py::ssize_t>(size_of(type));
    return result;
  }
};

// An operator bound to one src, by shape, strides and type, and to the plan for it.
class Compiled {
 public:
  Compiled(const Operator& op, Layout src, Layout mean, const bool gamma, const bool sums,
           const BackendChoice backend)
      : op_(op),
        src_(std::move(src)),
        mean_(std::move(mean)),
        gamma_(gamma),
        sums_(sums),
        backend_(backend) {
    const View x = src_.view();
    const View mu = mean_.view();
    const bool ranks_fit = x.rank <= max_rank && src_.strides.size() == src_.shape.size() &&
                           mean_.strides.size() == mean_.shape.size();
    const std::optional<KeptAxes> kept =
        ranks_fit && op_.types_fit(x.type, mu.type) ? op_.kept_axes(x, mu) : std::nullopt;
    if (!kept) throw std::invalid_argument("onedsl._core.Compiled: unchecked arguments");
    const std::optional<Geometry> geometry = geometry_of(x, *kept);
    if (!geometry) {
      throw std::invalid_argument(
          "the tensor's strides cannot be used: its memory must be dense, and the axes that have "
          "statistics must lie in it in their own order");
    }
    geometry_ = *geometry;
    plan_ = make_plan();
  }

  py::object run(const py::handle src, const py::handle diff_dst, const py::handle mean,
                 const py::handle variance, const py::handle gamma, const py::object& out) {
    const std::optional<Call> call = op_.check(src, diff_dst, mean, variance, gamma, sums_, out);
    if (!call || !call->src.same_layout(src_.view()) || !call->mean.same_layout(mean_.view()) ||
        call->gamma.has_value() != gamma_) {
      return py::none();
    }
    // A plan from before a fork would hang: this process has lost its threads.
    if (plan_->key().fork_generation != fork_generation()) plan_ = make_plan();
    Results results = prepare(*call, sums_, out);
    const std::shared_ptr<const Plan> plan = plan_;
    {
      // Safe without the GIL: as in Operator::run, and `plan` is this call's own reference.
      const py::gil_scoped_release release;
      plan->execute(results.ports);
    }
    return deliver(std::move(results), *call, src);
  }

  const Plan& plan() const { return *plan_; }

 private:
  std::shared_ptr<const Plan> make_plan() const {
    return op_.plan(geometry_, src_.type, mean_.type, sums_, backend_);
  }

  Operator op_;
  Layout src_, mean_;
  bool gamma_, sums_;
  BackendChoice backend_;
  Geometry geometry_;
  std::shared_ptr<const Plan> plan_;
};

}  // namespace

void bind_operator(py::module_& module) {
  py::native_enum<DataType>(module, "DataType", "enum.Enum")
      .value("f32", DataType::f32)
      .value("bf16", DataType::bf16)
      .value("f16", DataType::f16)
      .finalize();
  py::native_enum<BackendChoice>(module, "Backend", "enum.Enum")
      .value("auto", BackendChoice::automatic)
      .value("onednn", BackendChoice::onednn)
      .value("native", BackendChoice::native)
      .finalize();

  py::native_enum<Statistics>(module, "Statistics", "enum.Enum")
      .value("batch", Statistics::batch)
      .value("frozen", Statistics::frozen)
      .finalize();
  py::native_enum<StatisticsShape>(module, "StatisticsShape", "enum.Enum")
      .value("channel_second", StatisticsShape::channel_second)
      .value("channel_last", StatisticsShape::channel_last)
      .value("broadcast", StatisticsShape::broadcast)
      .finalize();

  module.def("is_dense", [](const py::object& array, const KeptAxes kept) {
    const std::optional<View> v = view(array);
    return v && geometry_of(*v, kept);
  });

  py::class_<Operator>(module, "Operator")
      .def(py::init([](const double epsilon, const Statistics statistics,
                       const StatisticsShape shape, const bool keeps_history, const bool inverse) {
             return Operator(epsilon, statistics, shape,
                             keeps_history ? History::kept : History::refused, inverse);
           }),
           py::arg("epsilon"), py::arg("statistics"), py::arg("shape"),
           py::arg("keeps_history") = false, py::arg("inverse") = false)
      .def("run", &Operator::run);

  py::class_<Compiled>(module, "Compiled")
      // Making a plan touches no Python object, and takes oneDNN a millisecond.
      .def(py::init([](const Operator& op, const DataType data, Sizes shape, Sizes strides,
                       const DataType statistics, Sizes stats_shape, Sizes stats_strides,
                       const bool gamma, const bool sums, const BackendChoice backend) {
             return std::make_unique<Compiled>(
                 op, Layout{data, std::move(shape), std::move(strides)},
                 Layout{statistics, std::move(stats_shape), std::move(stats_strides)}, gamma, sums,
                 backend);
           }),
           py::arg("op"), py::arg("data"), py::arg("shape"), py::arg("strides"),
           py::arg("statistics"), py::arg("stats_shape"), py::arg("stats_strides"),
           py::arg("gamma"), py::arg("sums"), py::arg("backend"),
           py::call_guard<py::gil_scoped_release>())
      .def("run", &Compiled::run)
      .def_property_readonly("backend", [](const Compiled& c) { return c.plan().backend(); })
      .def_property_readonly("implementation",
                             [](const Compiled& c) { return c.plan().implementation(); })
      .def_property_readonly("num_threads",
                             [](const Compiled& c) { return c.plan().key().num_threads; });
}

}  // namespace onedsl
