#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace onedsl::native {

// Those that the kernels are built for, each one more than those before it.
enum class Isa : std::uint8_t { baseline, avx2, avx512, avx512_bf16 };

// The last cache, as far as it counts, and how many cores share it; and the second one.
struct Cache {
  std::int64_t bytes = 0;
  std::int64_t cores = 1;
  std::int64_t second_bytes = 0;
};

// What a run depends on, beside the problem and the number of threads. The instruction set alone
// has a part in the results.
struct Machine {
  Isa isa = Isa::baseline;
  Cache cache;
  std::int64_t elements_per_thread = 16384;  // fewer do not pay for another thread
};

// This CPU, asked once. The environment variable ONEDSL_MAX_CPU_ISA, or else ONEDNN_MAX_CPU_ISA,
// caps its instruction set.
const Machine& this_machine();

// What this CPU has, whatever the caps.
Isa best_isa();

// The instruction set that a cap leaves, by the names that isa_name() gives or that oneDNN has, in
// upper or lower case. Nothing if no instruction set is called so.
std::optional<Isa> isa_capped_by(std::string_view cap);

// The value of ONEDSL_MAX_CPU_ISA if it means nothing, and so caps nothing. What oneDNN's own
// variable may say is oneDNN's business.
std::optional<std::string> unknown_cap();

// What ONEDSL_MAX_CPU_ISA may say: names with a comma between them.
std::string known_caps();

// "avx512", "avx2" or "baseline".
const char* public_name(Isa isa);

// Of what the kernels of this process use.
const char* isa_name();

// The size of the last cache that a core shares with its neighbours, as the CPU itself says (on
// some virtual machines the system reports many such caches as one), and as far as it counts.
std::int64_t last_cache_bytes();

}  // namespace onedsl::native
