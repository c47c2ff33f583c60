#include <array>
#include <cstring>
#include <exception>
#include <iostream>

#include "tests.hpp"

// Run the tests that are named on the command line, or all that are linked.
int main(const int argc, const char* const* const argv) {
  using namespace onedsl::test;
  struct Test {
    const char* name;
    void (*run)();
  };
  constexpr std::array tests = {
      Test{"check", test_check},
      Test{"cpu", test_cpu},
      Test{"geometry", test_geometry},
      Test{"schedule", test_schedule},
      Test{"reproducibility", test_reproducibility},
      Test{"pitches", test_pitches},
      Test{"empty", test_empty},
      Test{"pool", test_pool},
  };
  const auto is_selected = [&](const char* const name) {
    bool found = argc == 1;
    for (int i = 1; i < argc; ++i) found = found || std::strcmp(argv[i], name) == 0;
    return found;
  };
  int ran = 0;
  int failed = 0;
  for (const Test& test : tests) {
    if (test.run == nullptr || !is_selected(test.name)) continue;
    ++ran;
    try {
      test.run();
      std::cout << test.name << ": passed" << std::endl;
    } catch (const std::exception& error) {
      ++failed;
      std::cout << test.name << ": FAILED: " << error.what() << std::endl;
    }
  }
  return ran > 0 && failed == 0 ? 0 : 1;
}
