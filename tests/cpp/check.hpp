#pragma once

#include <cstdint>
#include <random>
#include <sstream>
#include <stdexcept>

namespace onedsl::test {

// Ends the test, with what is to be said of it, unless it is true.
template <class... Parts>
void check(const bool is_true, const Parts&... what) {
  if (is_true) return;
  std::ostringstream text;
  (text << ... << what);
  throw std::runtime_error(text.str());
}

// The same numbers everywhere, for the same seed.
class Random {
 public:
  explicit Random(const std::uint64_t seed) : engine_(seed) {}

  std::int64_t between(const std::int64_t least, const std::int64_t most) {
    return least +
           static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(most - least + 1));
  }
  // Small numbers are as likely as large ones.
  std::int64_t of_any_size(const std::int64_t most) {
    std::int64_t bound = 1;
    while (bound < most && between(0, 7) != 0) bound *= 2;
    return between(1, bound < most ? bound : most);
  }
  bool chance(const int one_in) { return between(1, one_in) == 1; }
  template <class Container>
  auto of(const Container& items) {
    return items[static_cast<std::size_t>(between(0, static_cast<std::int64_t>(items.size()) - 1))];
  }
  // Between -1 and 1.
  double real() { return static_cast<double>(between(-(1 << 20), 1 << 20)) / (1 << 20); }

 private:
  std::mt19937_64 engine_;
};

}  // namespace onedsl::test
