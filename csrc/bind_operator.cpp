#include <pybind11/native_enum.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "bind.hpp"
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
    py::array array = empty_vector(call.mean.type, call.geometry.channels);
    port = array.mutable_data();
    return array;
  };
  py::object diff_gamma = sum(ports.diff_gamma);
  py::object diff_beta = sum(ports.diff_beta);
  results.arrays = py::make_tuple(std::move(diff_src), std::move(diff_gamma), std::move(diff_beta));
  return results;
}

bool is_dense(const View& v) {
  if (v.rank == 0) return true;
  const auto item_size = static_cast<py::ssize_t>(size_of(v.type));
  return dense_geometry(v.rank, v.shape, v.strides, item_size, 0).has_value();
}

bool types_fit(const DataType data, const DataType statistics) {
  return statistics == DataType::f32 || (statistics == DataType::bf16 && data == DataType::bf16);
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

class Operator {
 public:
  // channel_axis is 1, or -1 for the last.
  Operator(const double epsilon, const int channel_axis)
      : epsilon_(epsilon), channel_axis_(channel_axis) {
    if (channel_axis != 1 && channel_axis != -1) {
      throw std::invalid_argument("onedsl._core.Operator: channel_axis must be 1 or -1");
    }
  }

  py::ssize_t channel_axis(const py::ssize_t rank) const {
    return channel_axis_ < 0 ? rank - 1 : channel_axis_;
  }

  // Nothing if any argument is not plainly right.
  std::optional<Call> check(const py::handle src, const py::handle diff_dst, const py::handle mean,
                            const py::handle variance, const py::handle gamma, const bool sums,
                            const py::handle out) const {
    const std::optional<View> x = view(src);
    const std::optional<View> dy = view(diff_dst);
    const std::optional<View> mu = view(mean);
    const std::optional<View> var = view(variance);
    if (!x || !dy || !mu || !var || x->rank < 2 || !dy->same_layout(*x)) return std::nullopt;
    const std::optional<Geometry> geometry =
        dense_geometry(x->rank, x->shape, x->strides, static_cast<py::ssize_t>(size_of(x->type)),
                       channel_axis(x->rank));
    if (!geometry) return std::nullopt;

    Call call{*geometry, *x, *dy, *mu, *var, {}, {}, {}, {}};
    const auto statistic_fits = [&](const View& v) {
      return v.type == mu->type && v.is_vector(geometry->channels);
    };
    if (!types_fit(x->type, mu->type) || !statistic_fits(*mu) || !statistic_fits(*var)) {
      return std::nullopt;
    }
    if (!gamma.is_none()) {
      call.gamma = view(gamma);
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
                                   const DataType statistics, const BackendChoice backend,
                                   const int num_threads) const {
    PlanKey key;
    key.problem = {geometry, data, Statistics::batch, epsilon_};
    key.statistics_type = statistics;
    key.backend = backend;
    key.num_threads = num_threads;
    key.fork_generation = fork_generation();
    return find_plan(key);
  }

  py::object run(const py::handle src, const py::handle diff_dst, const py::handle mean,
                 const py::handle variance, const py::handle gamma, const bool sums,
                 const py::object& out, const BackendChoice backend) const {
    const std::optional<Call> call = check(src, diff_dst, mean, variance, gamma, sums, out);
    if (!call) return py::none();
    Results results = prepare(*call, sums, out);
    {
      // Safe without the GIL: plans touch no Python object, and the arrays are kept alive by the
      // caller's frame and by `results`.
      const py::gil_scoped_release release;
      plan(call->geometry, call->src.type, call->mean.type, backend, max_threads())
          ->execute(results.ports);
    }
    return std::move(results.arrays);
  }

 private:
  double epsilon_;
  int channel_axis_;
};

// An operator bound to one src, by shape, strides and type, and to the plan for it.
class Compiled {
 public:
  Compiled(const Operator& op, std::vector<py::ssize_t> shape, std::vector<py::ssize_t> strides,
           const DataType data, const DataType statistics, const bool gamma, const bool sums,
           const BackendChoice backend)
      : op_(op),
        shape_(std::move(shape)),
        strides_(std::move(strides)),
        data_(data),
        statistics_(statistics),
        gamma_(gamma),
        sums_(sums),
        backend_(backend) {
    const auto rank = static_cast<py::ssize_t>(shape_.size());
    if (rank < 2 || rank > max_rank || strides_.size() != shape_.size() ||
        !types_fit(data, statistics)) {
      throw std::invalid_argument("onedsl._core.Compiled: unchecked arguments");
    }
    const std::optional<Geometry> geometry =
        dense_geometry(rank, shape_.data(), strides_.data(),
                       static_cast<py::ssize_t>(size_of(data)), op_.channel_axis(rank));
    if (!geometry) throw std::invalid_argument("onedsl._core.Compiled: not dense");
    geometry_ = *geometry;
    plan_ = op_.plan(geometry_, data_, statistics_, backend_, max_threads());
  }

  py::object run(const py::handle src, const py::handle diff_dst, const py::handle mean,
                 const py::handle variance, const py::handle gamma, const py::object& out) {
    const std::optional<Call> call = op_.check(src, diff_dst, mean, variance, gamma, sums_, out);
    View wanted;
    wanted.type = data_;
    wanted.rank = static_cast<py::ssize_t>(shape_.size());
    wanted.shape = shape_.data();
    wanted.strides = strides_.data();
    if (!call || !call->src.same_layout(wanted) || call->mean.type != statistics_ ||
        call->gamma.has_value() != gamma_) {
      return py::none();
    }
    if (plan_->key().fork_generation != fork_generation()) {
      // A plan from before a fork would hang: this process has lost its threads.
      plan_ = op_.plan(geometry_, data_, statistics_, backend_, max_threads());
    }
    Results results = prepare(*call, sums_, out);
    const std::shared_ptr<const Plan> plan = plan_;
    {
      // Safe without the GIL: as in Operator::run, and `plan` is this call's own reference.
      const py::gil_scoped_release release;
      plan->execute(results.ports);
    }
    return std::move(results.arrays);
  }

  const Plan& plan() const { return *plan_; }
  std::int64_t channels() const { return geometry_.channels; }

 private:
  Operator op_;
  std::vector<py::ssize_t> shape_, strides_;
  DataType data_, statistics_;
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

  module.def("is_dense", [](const py::object& array) {
    const std::optional<View> v = view(array);
    return v && is_dense(*v);
  });

  py::class_<Operator>(module, "Operator")
      .def(py::init<double, int>(), py::arg("epsilon"), py::arg("channel_axis"))
      .def("run", &Operator::run);

  py::class_<Compiled>(module, "Compiled")
      // Making a plan touches no Python object, and takes oneDNN a millisecond.
      .def(py::init<const Operator&, std::vector<py::ssize_t>, std::vector<py::ssize_t>, DataType,
                    DataType, bool, bool, BackendChoice>(),
           py::arg("op"), py::arg("shape"), py::arg("strides"), py::arg("data"),
           py::arg("statistics"), py::arg("gamma"), py::arg("sums"), py::arg("backend"),
           py::call_guard<py::gil_scoped_release>())
      .def("run", &Compiled::run)
      .def_property_readonly("backend", [](const Compiled& c) { return c.plan().backend(); })
      .def_property_readonly("implementation",
                             [](const Compiled& c) { return c.plan().implementation(); })
      .def_property_readonly("channels", &Compiled::channels)
      .def_property_readonly("num_threads",
                             [](const Compiled& c) { return c.plan().key().num_threads; });
}

}  // namespace onedsl
