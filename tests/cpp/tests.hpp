#pragma once

namespace onedsl::test {

void test_check();
void test_cpu();
void test_geometry();
void test_schedule();
void test_reproducibility();
void test_strides();
void test_empty();
void test_pool();

}  // namespace onedsl::test
