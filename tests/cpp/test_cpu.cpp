#include <cstdlib>
#include <string>

#include "check.hpp"
#include "isas.hpp"
#include "native/cpu.hpp"
#include "tests.hpp"

namespace onedsl::test {
namespace {

using native::Isa;

void test_valid_caps() {
  struct Case {
    const char* cap;
    Isa isa;
  };
  for (const Case& valid :
       {Case{"baseline", Isa::baseline}, Case{"avx2", Isa::avx2}, Case{"avx512", Isa::avx512_bf16},
        Case{"SSE41", Isa::baseline}, Case{"AVX", Isa::baseline}, Case{"AVX2", Isa::avx2},
        Case{"AVX2_VNNI", Isa::avx2}, Case{"AVX512_CORE", Isa::avx512},
        Case{"Avx512_Core_Bf16", Isa::avx512_bf16}, Case{"ALL", Isa::avx512_bf16},
        Case{"default", Isa::avx512_bf16}}) {
    check(native::parse_isa_cap(valid.cap) == valid.isa, valid.cap);
  }
  for (const char* const typo : {"", " ", "avx-512", "AVX2_", "AVX51", "AVX512_COR", "sse"}) {
    check(!native::parse_isa_cap(typo), "'", typo, "' is accepted");
  }
  check(native::parse_isa_cap(native::isa_name()).has_value(), native::isa_name());
}

void test_invalid_caps() {
  ::setenv("ONEDNN_MAX_CPU_ISA", "nonsense", 1);
  for (const char* const valid : {"", "avx2", "SSE41"}) {
    ::setenv("ONEDSL_MAX_CPU_ISA", valid, 1);
    check(!native::unknown_cap(), "'", valid, "' is rejected");
  }
  ::setenv("ONEDSL_MAX_CPU_ISA", "avx513", 1);
  check(native::unknown_cap() == "avx513", "'avx513' is accepted");
  ::unsetenv("ONEDSL_MAX_CPU_ISA");
  check(!native::unknown_cap(), "an unset variable is rejected");
  ::unsetenv("ONEDNN_MAX_CPU_ISA");

  const std::string names = ", " + native::known_caps() + ", ";
  for (const char* const name : {"baseline", "avx2", "avx512", "AVX512_CORE_AMX", "DEFAULT"}) {
    check(names.find(std::string(", ") + name + ", ") != std::string::npos, name);
  }
}

void test_machine() {
  const native::Machine& machine = native::this_machine();
  check(machine.isa <= native::best_isa(), "this CPU does not support ", name_of(machine.isa));
  check(machine.cache.bytes >= 65536 && machine.cache.cores >= 1, "no last-level cache");
  check(native::last_cache_bytes() == machine.cache.bytes, "last_cache_bytes() differs");
}

}  // namespace

void test_cpu() {
  test_machine();
  test_valid_caps();
  test_invalid_caps();
}

}  // namespace onedsl::test
