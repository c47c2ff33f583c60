#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "../core/threads.hpp"
#include "kernels.hpp"
#include "schedule.hpp"
#include "staging.hpp"

namespace onedsl::native {

// Memory of all workers for the sums of a tile, and for staged tensors.
struct WorkerMemory {
  TileScratch first;        // of worker 0
  Index doubles = 0;        // of a worker
  Index floats = 0;         // of a worker
  Index staging_bytes = 0;  // of a worker

  TileScratch of(const Worker& worker) const {
    return {first.doubles + worker.index * doubles, first.floats + worker.index * floats,
            first.staging + worker.index * staging_bytes};
  }
};

// A run as parallel loops, within which no worker waits for another. In the first loop, each worker
// also computes all of its own channels. Of each panel that they share, they compute the sums of
// all chunks; then they add these; then they write the results, and sum the next panel.
class RunLoops final : public Loops {
 public:
  RunLoops(const Kernels& kernels, const Task& task, const Schedule& schedule,
           const Staging* staging, bool needs_sums, const WorkerMemory& memory);

  int first() const noexcept override;
  int next(int loop) const noexcept override;
  bool is_last(int loop) const noexcept override;
  void run(int loop, const Worker& worker) override;

 private:
  // The loops of a panel, in their order. Sums that lost precision are computed again, once.
  enum Stage : std::uint8_t { prepare, sum, finish, sum_again, finish_again, write };
  struct Place {
    int panel;
    Stage stage;
  };
  static int at(int panel, Stage stage) noexcept { return panel * (write + 1) + stage; }
  static Place place_of(int loop) noexcept;

  void process_own_channels(const Worker& worker) const;
  void sum_tiles(const Range& panel, const Worker& share, const TileScratch& scratch) const;
  void write_tiles(const Range& panel, const Worker& share, const TileScratch& scratch,
                   Index to_next_panel = 0) const;

  const Kernels& kernels_;
  const Task& task_;
  const Schedule& schedule_;
  const Staging* staging_;  // null: all tensors are dense
  WorkerMemory memory_;
  bool needs_sums_;
  bool needs_pivots_;
  bool writes_;
  int panels_;                               // that the workers share
  std::atomic<int> imprecise_panel_ = none;  // the latest panel whose sums lost precision
};

}  // namespace onedsl::native
