#include "cpu.hpp"

#include <cpuid.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>

namespace onedsl::native {
namespace {

struct Cap {
  std::string_view name;
  Isa isa;
};

// onedsl's names, then oneDNN's.
constexpr std::array caps = {
    Cap{"baseline", Isa::baseline},
    Cap{"avx2", Isa::avx2},
    Cap{"avx512", Isa::avx512_bf16},
    Cap{"SSE41", Isa::baseline},
    Cap{"AVX", Isa::baseline},
    Cap{"AVX2_VNNI", Isa::avx2},
    Cap{"AVX2_VNNI_2", Isa::avx2},
    Cap{"AVX512_CORE", Isa::avx512},
    Cap{"AVX512_CORE_VNNI", Isa::avx512},
    Cap{"AVX512_CORE_BF16", Isa::avx512_bf16},
    Cap{"AVX512_CORE_FP16", Isa::avx512_bf16},
    Cap{"AVX512_CORE_AMX", Isa::avx512_bf16},
    Cap{"AVX512_CORE_AMX_FP16", Isa::avx512_bf16},
    Cap{"AVX10_1_512", Isa::avx512_bf16},
    Cap{"AVX10_1_512_AMX", Isa::avx512_bf16},
    Cap{"AVX10_1_512_AMX_FP16", Isa::avx512_bf16},
    Cap{"AVX10_2_512", Isa::avx512_bf16},
    Cap{"AVX10_2_512_AMX_2", Isa::avx512_bf16},
    Cap{"ALL", Isa::avx512_bf16},
    Cap{"DEFAULT", Isa::avx512_bf16},
};

bool equal_ignoring_case(const std::string_view a, const std::string_view b) {
  const auto lower = [](const char letter) {
    return std::tolower(static_cast<unsigned char>(letter));
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](const char p, const char q) { return lower(p) == lower(q); });
}

// Return the value of an environment variable, or "" if it is not set.
std::string_view environment(const char* const variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr ? value : "";
}

Isa cap_of_environment() {
  const std::string_view own = environment("ONEDSL_MAX_CPU_ISA");
  return parse_isa_cap(own.empty() ? environment("ONEDNN_MAX_CPU_ISA") : own)
      .value_or(Isa::avx512_bf16);
}

// On a server many cores share a last-level cache of hundreds of megabytes, so a few cores can use
// only a part of it. Also assumed if CPUID reports no cache.
constexpr std::int64_t max_cache_bytes = std::int64_t{32} << 20U;

// Detect the caches by CPUID: on some virtual machines sysconf reports several last-level caches as
// one.
Cache detect_caches() {
  Cache found;
  for (const unsigned leaf : {0x4U, 0x8000001dU}) {
    for (unsigned index = 0; index < 8; ++index) {
      unsigned a = 0;
      unsigned b = 0;
      unsigned c = 0;
      unsigned d = 0;
      const bool supported = __get_cpuid_count(leaf, index, &a, &b, &c, &d) != 0;
      if (!supported || (a & 0x1fU) == 0) break;
      const std::int64_t ways = (b >> 22U) + 1;
      const std::int64_t partitions = (b >> 12U & 0x3ffU) + 1;
      const std::int64_t line = (b & 0xfffU) + 1;
      const std::int64_t bytes = ways * partitions * line * (std::int64_t{c} + 1);
      if ((a >> 5U & 0x7U) == 2) found.l2_bytes = bytes;
      if (bytes > found.bytes) {
        found.bytes = bytes;
        found.cores = (a >> 14U & 0xfffU) + 1;
      }
    }
  }
  if (found.bytes == 0) return {max_cache_bytes, 8, 0};
  found.bytes = std::min(found.bytes, max_cache_bytes);
  return found;
}

// Return whether the CPU has F16C, which __builtin_cpu_supports of clang 14 does not accept.
bool has_f16c() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

}  // namespace

Isa best_isa() {
  // That the system saves the registers of AVX, which F16C uses too, is part of "avx2".
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c()) {
    return Isa::baseline;
  }
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
    return Isa::avx2;
  }
  return __builtin_cpu_supports("avx512bf16") ? Isa::avx512_bf16 : Isa::avx512;
}

std::optional<Isa> parse_isa_cap(const std::string_view cap) {
  const auto* const found = std::find_if(
      caps.begin(), caps.end(), [&](const Cap& c) { return equal_ignoring_case(c.name, cap); });
  return found != caps.end() ? std::make_optional(found->isa) : std::nullopt;
}

std::optional<std::string> unknown_cap() {
  const std::string_view own = environment("ONEDSL_MAX_CPU_ISA");
  if (own.empty() || parse_isa_cap(own)) return std::nullopt;
  return std::string(own);
}

std::string known_caps() {
  std::string names;
  for (const Cap& cap : caps) {
    if (!names.empty()) names += ", ";
    names += cap.name;
  }
  return names;
}

const Machine& this_machine() {
  static const Machine machine = [] {
    Machine found;
    found.isa = std::min(best_isa(), cap_of_environment());
    found.cache = detect_caches();
    return found;
  }();
  return machine;
}

const char* public_name(const Isa isa) {
  constexpr std::array names = {"baseline", "avx2", "avx512", "avx512"};  // by Isa
  return names[static_cast<std::size_t>(isa)];
}

const char* isa_name() { return public_name(this_machine().isa); }

}  // namespace onedsl::native
