#include <unistd.h>

#include "check.hpp"
#include "isas.hpp"
#include "native/plan/cpu.hpp"
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

void test_machine() {
  const native::Machine& machine = native::this_machine();
  check(machine.isa <= native::best_isa(), "this CPU does not support ", name_of(machine.isa));
  check(machine.cache.bytes >= 65536 && machine.cache.cores >= 1, "no last-level cache");
  const bool has_third_level = sysconf(_SC_LEVEL3_CACHE_SIZE) > 0;
  check(!has_third_level || machine.cache.l2_bytes < machine.cache.bytes, "no second level");
}

}  // namespace

void test_cpu() {
  test_machine();
  test_valid_caps();
}

}  // namespace onedsl::test
