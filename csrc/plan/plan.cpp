#include "plan.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>

#include "../core/f32_statistics.hpp"
#include "../native/cpu.hpp"
#include "../onednn/backend.hpp"
#include "../onednn/engine.hpp"

namespace onedsl {
namespace {

class OneDNNPlan final : public Plan {
 public:
  explicit OneDNNPlan(const PlanKey& key) : Plan(key), backend_(key.problem, key.num_threads) {}
  const char* backend() const noexcept override { return "onednn"; }
  std::string implementation() const override {
    return onednn::name() + " " + signature_of(key().problem.operation).name + ", " +
           onednn::cpu_isa();
  }
  std::size_t bytes() const noexcept override { return backend_.bytes(); }
  std::optional<onednn::GraphView> graph() const override { return backend_.graph(); }

 private:
  void run(const Ports& ports) const override { backend_.run(ports); }

  mutable onednn::Backend backend_;  // locks itself
};

class NativePlan final : public Plan {
 public:
  using Plan::Plan;
  const char* backend() const noexcept override { return "native"; }
  std::string implementation() const override {
    constexpr std::array kernels = {"two-pass kernel", "first pass", "second pass"};  // by Pass
    const auto pass = static_cast<std::size_t>(key().problem.pass);
    return std::string("onedsl ") + kernels[pass] + ", " + native::isa_name();
  }
  std::size_t bytes() const noexcept override { return sizeof *this; }
  std::optional<native::KernelInfo> cut() const override {
    if (key().problem.geometry.elements() == 0) return {};
    return native::kernel_info(key().problem, key().num_threads);
  }

 private:
  void run(const Ports& ports) const override {
    native::run(key().problem, key().num_threads, ports);
  }
};

}  // namespace

bool operator==(const PlanKey& a, const PlanKey& b) noexcept {
  const auto parts = [](const PlanKey& key) {
    return std::tie(key.problem, key.statistics_type, key.backend, key.num_threads,
                    key.fork_generation);
  };
  return parts(a) == parts(b);
}

// oneDNN leaves the sums of an empty tensor unwritten, or not, from version to version.
void Plan::write_empty(const Ports& ports) const {
  const auto statistics = static_cast<std::size_t>(key_.problem.geometry.statistics());
  const std::size_t bytes = statistics * size_of(key_.statistics_type);
  key_.problem.outputs.for_each([&](const Output port) {
    if (is_tensor(port)) return;
    if (port == Output::running_mean) {
      std::memcpy(ports.out[port], ports.in[Input::mean], bytes);
    } else if (port == Output::running_variance) {
      std::memcpy(ports.out[port], ports.in[Input::variance], bytes);
    } else {
      std::memset(ports.out[port], 0, bytes);
    }
  });
  if (key_.problem.pass == Pass::reduce) {
    for (double* const sums : {ports.sums.first, ports.sums.second}) {
      std::fill_n(sums, statistics, 0.0);
    }
  }
}

// Whether an empty part has results of what the other parts have.
bool Plan::of_more(const Ports& ports) const {
  return key_.problem.pass == Pass::apply && *ports.sums.count > 0 &&
         key_.problem.geometry.statistics() > 0;
}

void Plan::execute(const Ports& ports) const {
  const Geometry& geometry = key_.problem.geometry;
  const auto statistics = static_cast<std::size_t>(geometry.statistics());
  if (key_.problem.pass == Pass::reduce) {
    *ports.sums.count = static_cast<double>(geometry.per_statistic());
  }
  if (geometry.elements() == 0 && !of_more(ports)) return write_empty(ports);
  if (key_.statistics_type == DataType::f32) return run(ports);
  const F32Statistics widened(ports, key_.statistics_type, statistics);
  run(widened.ports());
  widened.narrow_results();
}

std::shared_ptr<const Plan> make_plan(const PlanKey& key) {
  switch (key.backend) {
    case BackendChoice::onednn:
      return std::make_shared<OneDNNPlan>(key);
    case BackendChoice::native:
      return std::make_shared<NativePlan>(key);
    case BackendChoice::automatic:
      // Never oneDNN: it sums in f32, one element after the other, so that its error grows with
      // the elements a channel and passes the tolerance of 1e-6 at some thousands; and on most
      // layouts it is slower too.
      return std::make_shared<NativePlan>(key);
  }
  return nullptr;
}

}  // namespace onedsl
