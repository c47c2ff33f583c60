#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace onedsl::native {

// The instruction sets that the kernels are built for. Each one includes those before it.
enum class Isa : std::uint8_t { baseline, avx2, avx512, avx512_bf16 };

// On CPUs with second-level caches of at least this size, the last-level cache is hardly faster
// than memory, because a mesh connects it.
constexpr std::int64_t large_l2 = std::int64_t{2} << 20;

// The sizes of the caches that schedules depend on.
struct Cache {
  std::int64_t bytes = 0;  // of the last-level cache, at most 32 MiB
  std::int64_t cores = 1;  // that share the last-level cache
  std::int64_t l2_bytes = 0;
};

// What a run depends on besides its problem, its memory and the number of threads. Only the
// instruction set affects the results.
struct Machine {
  Isa isa = Isa::baseline;
  Cache cache;
  // From so many elements on, a call is parallel: for two threads, and in addition for each further
  // thread, because a parallel region has all of them.
  std::int64_t parallel_from = 32768;
  std::int64_t parallel_from_per_thread = 2048;
  // Of a parallel call. A worker with fewer elements saves no time.
  std::int64_t min_elements_per_worker = 4096;
};

// Return the Machine for this CPU, which is detected once. The environment variable
// ONEDSL_MAX_CPU_ISA, or ONEDNN_MAX_CPU_ISA if the former is unset or empty, caps the instruction
// set.
const Machine& this_machine();

// Return the best instruction set of this CPU, ignoring the caps.
Isa best_isa();

// Return the instruction set for the value of a cap, which is a name of known_caps() in any case.
// Return nullopt for other values.
std::optional<Isa> parse_isa_cap(std::string_view cap);

// Return the value of ONEDSL_MAX_CPU_ISA if it is invalid; it is then ignored. oneDNN validates its
// own variable.
std::optional<std::string> unknown_cap();

// Return the valid values of ONEDSL_MAX_CPU_ISA, separated by commas.
std::string known_caps();

// Return "avx512", "avx2" or "baseline".
const char* public_name(Isa isa);

// Return the public name of the instruction set that the kernels use in this process.
const char* isa_name();

}  // namespace onedsl::native
