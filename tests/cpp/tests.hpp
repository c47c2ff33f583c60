#pragma once

namespace onedsl::test {

// Weak: a program may be linked with some of the files.
[[gnu::weak]] void test_check();
[[gnu::weak]] void test_cpu();
[[gnu::weak]] void test_geometry();
[[gnu::weak]] void test_schedule();
[[gnu::weak]] void test_reproducibility();
[[gnu::weak]] void test_pitches();
[[gnu::weak]] void test_empty();
[[gnu::weak]] void test_pool();

}  // namespace onedsl::test
