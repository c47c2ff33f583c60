#include "loops.hpp"

#include <emmintrin.h>

#include <algorithm>

#include "plan/schedule.hpp"

namespace onedsl::native {

RunLoops::RunLoops(const Plan& plan, const KernelArgs& args, const Buffers& buffers)
    : plan_(plan),
      args_(args),
      buffers_(buffers),
      needs_pivots_(plan.needs_sums && signature_of(args.config.operation).is_forward()),
      writes_(args.out[signature_of(args.config.operation).result] != nullptr),
      panels_(static_cast<int>(num_shared_panels(plan.schedule, args.order))) {}

RunLoops::Place RunLoops::place_of(const int loop) noexcept {
  return {loop / (write + 1), static_cast<Stage>(loop % (write + 1))};
}

int RunLoops::first() const noexcept {
  if (needs_pivots_ && panels_ > 0) return at(0, prepare);
  return at(0, plan_.needs_sums || plan_.schedule.own > 0 ? sum : finish);
}

int RunLoops::next(const int loop) const noexcept {
  const auto [panel, stage] = place_of(loop);
  const bool has_next_panel = panel + 1 < panels_;
  switch (stage) {
    case prepare:
      return at(0, sum);
    case sum:
      return panels_ > 0 ? at(panel, finish) : none;
    case finish:
      if (imprecise_panel_ == panel) return at(panel, sum_again);
      break;
    case sum_again:
      return at(panel, finish_again);
    case finish_again:
      break;
    case write:  // with the sums of the next panel
      return has_next_panel ? at(panel + 1, finish) : none;
  }
  if (writes_) return at(panel, write);
  return has_next_panel ? at(panel + 1, sum) : none;
}

bool RunLoops::is_last(const int loop) const noexcept {
  const auto [panel, stage] = place_of(loop);
  if (panels_ == 0) return true;
  if (panel + 1 < panels_) return false;
  return writes_ ? stage == write : stage == finish_again || (stage == finish && !needs_pivots_);
}

void RunLoops::run(const int loop, const Worker& worker) {
  const auto [panel, stage] = place_of(loop);
  const TileScratch scratch = buffers_.of(worker);
  const auto channels = [&](const int of) { return shared_panel(plan_.schedule, args_.order, of); };
  switch (stage) {
    case prepare:
      plan_.kernels.prepare(args_,
                            finished_channels({plan_.schedule.own, args_.order.channels}, worker));
      break;
    case sum:
      if (panel == 0) process_own_channels(worker);
      if (panel < panels_) sum_tiles(channels(panel), worker, scratch);
      break;
    case sum_again:
      sum_tiles(channels(panel), worker, scratch);
      break;
    case finish:
    case finish_again:
      if (!plan_.kernels.finish(args_, finished_channels(channels(panel), worker))) {
        imprecise_panel_ = panel;
      }
      break;
    case write:
      write_tiles(channels(panel), worker);
      if (panel + 1 < panels_) sum_tiles(channels(panel + 1), worker, scratch);
      break;
  }
  // Other workers read the results of the stores in the next loop, or the caller after the last
  // one.
  if (args_.non_temporal) _mm_sfence();
}

// In panels that stay in a cache from the sums to the results.
void RunLoops::process_own_channels(const Worker& worker) const {
  const Range own = own_channels(plan_.schedule, worker);
  const TileScratch scratch = buffers_.of(worker);
  const Worker alone;
  for (Index c = own.begin; c < own.end; c += plan_.schedule.block) {
    const Range panel{c, std::min(c + plan_.schedule.block, own.end)};
    if (needs_pivots_) plan_.kernels.prepare(args_, panel);
    sum_tiles(panel, alone, scratch);
    if (!plan_.kernels.finish(args_, panel)) {
      sum_tiles(panel, alone, scratch);
      plan_.kernels.finish(args_, panel);
    }
    const bool prefetches = plan_.schedule.prefetch_next_panel && panel.end < own.end;
    write_tiles(panel, alone, prefetches ? plan_.schedule.block * args_.order.inner : 0);
  }
}

void RunLoops::sum_tiles(const Range& panel, const Worker& share,
                         const TileScratch& scratch) const {
  if (!plan_.needs_sums) return;
  for_summed_tiles(plan_.schedule, args_.order, panel, share,
                   [&](const Tile& tile) { plan_.passes.reduce(args_, tile, scratch); });
}

void RunLoops::write_tiles(const Range& panel, const Worker& share,
                           const Index to_next_panel) const {
  if (!writes_) return;
  for_written_tiles(plan_.schedule, args_.order, panel, share, [&](Tile tile) {
    tile.to_next_panel = to_next_panel;
    plan_.passes.write(args_, tile);
  });
}

}  // namespace onedsl::native
