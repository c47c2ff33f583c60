#pragma once

#include <atomic>
#include <cstdint>

#include "../core/threads.hpp"
#include "kernels/kernels.hpp"
#include "plan/buffers.hpp"
#include "plan/plan.hpp"

namespace onedsl::native {

// A run as parallel loops, within which no worker waits for another. In the first loop, each worker
// also computes all of its own channels. Of each panel that they share, they compute the sums of
// all chunks; then they add these; then they write the results, and sum the next panel.
class RunLoops final : public Loops {
 public:
  RunLoops(const Plan& plan, const KernelArgs& args, const Buffers& buffers);

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
  void write_tiles(const Range& panel, const Worker& share, Index to_next_panel = 0) const;

  const Plan& plan_;
  const KernelArgs& args_;
  const Buffers& buffers_;
  bool needs_pivots_;
  bool writes_;
  int panels_;                               // that the workers share
  std::atomic<int> imprecise_panel_ = none;  // the latest panel whose sums lost precision
};

}  // namespace onedsl::native
