#include <cstdlib>
#include <string>

#include "check.hpp"
#include "isas.hpp"
#include "native/cpu.hpp"
#include "tests.hpp"

namespace onedsl::test {
namespace {

using native::Isa;

void test_names_of_caps() {
  struct Named {
    const char* cap;
    Isa isa;
  };
  for (const Named& named :
       {Named{"baseline", Isa::baseline}, Named{"avx2", Isa::avx2},
        Named{"avx512", Isa::avx512_bf16}, Named{"SSE41", Isa::baseline},
        Named{"AVX", Isa::baseline}, Named{"AVX2", Isa::avx2}, Named{"AVX2_VNNI", Isa::avx2},
        Named{"AVX512_CORE", Isa::avx512}, Named{"Avx512_Core_Bf16", Isa::avx512_bf16},
        Named{"ALL", Isa::avx512_bf16}, Named{"default", Isa::avx512_bf16}}) {
    check(native::parse_isa_cap(named.cap) == named.isa, named.cap);
  }
  for (const char* const typo : {"", " ", "avx-512", "AVX2_", "AVX51", "AVX512_COR", "sse"}) {
    check(!native::parse_isa_cap(typo), "'", typo, "' means something");
  }
  // What isa_name() says can be asked for.
  check(native::parse_isa_cap(native::isa_name()).has_value(), native::isa_name());
}

void test_unknown_caps() {
  ::setenv("ONEDNN_MAX_CPU_ISA", "nonsense", 1);
  for (const char* const known : {"", "avx2", "SSE41"}) {
    ::setenv("ONEDSL_MAX_CPU_ISA", known, 1);
    check(!native::unknown_cap(), "'", known, "' is unknown");
  }
  ::setenv("ONEDSL_MAX_CPU_ISA", "avx513", 1);
  check(native::unknown_cap() == "avx513", "a typo goes unnoticed");
  ::unsetenv("ONEDSL_MAX_CPU_ISA");
  check(!native::unknown_cap(), "no cap is unknown");
  ::unsetenv("ONEDNN_MAX_CPU_ISA");

  const std::string names = ", " + native::known_caps() + ", ";
  for (const char* const name : {"baseline", "avx2", "avx512", "AVX512_CORE_AMX", "DEFAULT"}) {
    check(names.find(std::string(", ") + name + ", ") != std::string::npos, name);
  }
}

void test_machine() {
  const native::Machine& machine = native::this_machine();
  check(machine.isa <= native::best_isa(), "this CPU lacks ", name_of(machine.isa));
  check(machine.cache.bytes >= 65536 && machine.cache.cores >= 1, "no last cache");
  check(native::last_cache_bytes() == machine.cache.bytes, "another last cache");
}

}  // namespace

void test_cpu() {
  test_machine();
  test_names_of_caps();
  test_unknown_caps();
}

}  // namespace onedsl::test
