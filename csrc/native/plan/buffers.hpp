#pragma once

#include <cstddef>
#include <type_traits>

#include "../../core/threads.hpp"
#include "../kernels/kernels.hpp"
#include "scratch.hpp"

namespace onedsl::native {

// Numbers of elements.
struct BufferSizes {
  Index partials = 0;
  bool even_first = false;  // see Tables
  Index period = 0;
  Index entries = 0;
  Index workers = 1;
  // Of a worker. See TileScratch.
  Index doubles = 0;
  Index floats = 0;
};

// All memory that a run writes besides the caller's, in one allocation.
class Buffers {
 public:
  explicit Buffers(const BufferSizes& sizes) : sizes_(sizes), scratch_(bytes()) {
    tables_.even_first = sizes.even_first;
    tables_.period = sizes.period;
    tables_.entries = sizes.entries;
    for_each_array(*this, [&](auto*& array, const Index count) {
      array = scratch_.allocate<std::decay_t<decltype(*array)>>(count);
    });
  }

  double* partials() const noexcept { return partials_; }
  const Tables& tables() const noexcept { return tables_; }
  TileScratch of(const Worker& worker) const noexcept {
    return {first_.doubles + worker.index * sizes_.doubles,
            first_.floats + worker.index * sizes_.floats};
  }

 private:
  template <class Self, class Visit>
  static void for_each_array(Self& self, const Visit& visit) {
    const BufferSizes& sizes = self.sizes_;
    visit(self.partials_, sizes.partials);
    for (float* Tables::* const table : all_tables) visit(self.tables_.*table, sizes.entries);
    visit(self.first_.doubles, sizes.workers * sizes.doubles);
    visit(self.first_.floats, sizes.workers * sizes.floats);
  }

  std::size_t bytes() const {
    std::size_t sum = 0;
    for_each_array(*this, [&](const auto* array, const Index count) {
      sum += Scratch::bytes_for<std::decay_t<decltype(*array)>>(count);
    });
    return sum;
  }

  BufferSizes sizes_;
  double* partials_ = nullptr;
  Tables tables_;
  TileScratch first_;  // of worker 0
  Scratch scratch_;
};

}  // namespace onedsl::native
