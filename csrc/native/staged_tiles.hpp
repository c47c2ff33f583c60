#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "box_copy.hpp"
#include "kernels.hpp"
#include "plan.hpp"
#include "staging.hpp"

namespace onedsl::native {

// Processes the tiles of a thread.
class StagedTiles {
 public:
  // `staging` is that of the plan.
  StagedTiles(const Plan& plan, const Staging& staging, const TileArgs& args,
              const TileScratch& scratch)
      : plan_(plan), staging_(staging), args_(args), scratch_(scratch) {}

  // The last box of a tile is processed when the next one is known.
  void reduce(const Tile& tile);
  void write(const Tile& tile);
  void finish();

 private:
  // A part of a tile: a range of positions of each stream. They have equal lengths; the last may be
  // longer.
  struct Box {
    bool reduces = false;
    Index chunk = 0;
    std::array<Range, native::streams> streams;
    std::size_t num_streams = 1;
    Range channels;
    Range inner;
    bool begins = true;  // see Tile
    bool ends = true;

    Ranges ranges(const std::size_t stream) const {
      return {streams[stream < num_streams ? stream : num_streams - 1], channels, inner};
    }
  };

  void add(const Box& box);
  bool ends_at_unit(const Box& box) const;
  void process(const Box& box, const Box* next) const;
  TileArgs args_of(const Box& box, const Extents& lengths) const;
  void run_kernel(const TileArgs& args, const Box& box) const;
  void reduce_columns(Box& box);
  void reduce_planes(Box& box);
  void write_range(Box& box, const Tile& tile, const Range& positions, const Range& inner);

  const Plan& plan_;
  const Staging& staging_;
  const TileArgs& args_;
  const TileScratch& scratch_;
  std::optional<Box> last_;
};

}  // namespace onedsl::native
