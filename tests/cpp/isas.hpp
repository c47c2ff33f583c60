#pragma once

#include <vector>

#include "native/plan/cpu.hpp"

namespace onedsl::test {

// Return the instruction sets that this CPU supports.
inline std::vector<native::Isa> isas() {
  using native::Isa;
  std::vector<Isa> all;
  for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512, Isa::avx512_bf16}) {
    if (isa <= native::best_isa()) all.push_back(isa);
  }
  return all;
}

inline const char* name_of(const native::Isa isa) {
  constexpr const char* names[] = {"baseline", "avx2", "avx512", "avx512_bf16"};
  return names[static_cast<int>(isa)];
}

}  // namespace onedsl::test
