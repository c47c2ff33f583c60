#pragma once

namespace onedsl::test {

void test_conversions();
void test_cpu();
void test_geometry();
void test_order();
void test_schedule();
void test_accuracy();
void test_bits();
void test_forward();
void test_statistics();
void test_relu();

}  // namespace onedsl::test
