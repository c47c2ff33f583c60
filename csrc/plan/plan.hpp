#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "../core/ports.hpp"
#include "../core/problem.hpp"
#include "../core/types.hpp"
#include "../native/run.hpp"
#include "../onednn/graph_view.hpp"

namespace onedsl {

enum class BackendChoice : std::uint8_t { automatic, onednn, native };

// Everything that decides a plan; equal keys share one.
struct PlanKey {
  Problem problem;
  DataType statistics_type = DataType::f32;
  BackendChoice backend = BackendChoice::automatic;
  int num_threads = 1;
  int fork_generation = 0;
};
bool operator==(const PlanKey& a, const PlanKey& b) noexcept;

// How one problem is run. Holds none of the caller's arrays; any number of threads may execute it
// at once.
class Plan {
 public:
  explicit Plan(const PlanKey& key) : key_(key) {}
  virtual ~Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  // A caller's own memory, whose statistics are of the key's type. Nothing overlaps, but the pair
  // that the op's signature allows may be exactly the same memory.
  void execute(const Ports& ports) const;

  const PlanKey& key() const noexcept { return key_; }
  virtual const char* backend() const noexcept = 0;  // "onednn" or "native"
  virtual std::string implementation() const = 0;    // for people to read
  virtual std::size_t bytes() const noexcept = 0;    // about what it holds

  // To look at: oneDNN's graph where it runs one, and how onedsl's kernels cut the work.
  virtual std::optional<onednn::GraphView> graph() const { return {}; }
  virtual std::optional<native::KernelInfo> cut() const { return {}; }

 private:
  virtual void run(const Ports& ports) const = 0;  // statistics in f32
  void write_empty(const Ports& ports) const;
  bool of_more(const Ports& ports) const;

  PlanKey key_;
};

// Makes the plan for a key. Throws UnsupportedError where the chosen backend cannot run it.
std::shared_ptr<const Plan> make_plan(const PlanKey& key);

}  // namespace onedsl
