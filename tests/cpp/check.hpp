#pragma once

#include <cstdint>
#include <random>
#include <sstream>
#include <stdexcept>

namespace onedsl::test {

// Throw an exception, whose message consists of `parts`, unless the condition is true.
template <class... Parts>
void check(const bool condition, const Parts&... parts) {
  if (condition) return;
  std::ostringstream text;
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

// A random number generator. The numbers depend only on the seed, not on the standard library.
class Random {
 public:
  explicit Random(const std::uint64_t seed) : engine_(seed) {}

  std::int64_t between(const std::int64_t least, const std::int64_t most) {
    return least +
           static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(most - least + 1));
  }
  // Return a number between 1 and `most` of a random order of magnitude.
  std::int64_t of_any_size(const std::int64_t most) {
    std::int64_t bound = 1;
    while (bound < most && between(0, 7) != 0) bound *= 2;
    return between(1, bound < most ? bound : most);
  }
  // Return true with probability 1 / one_in.
  bool chance(const int one_in) { return between(1, one_in) == 1; }
  template <class Container>
  auto choice(const Container& items) {
    return items[static_cast<std::size_t>(between(0, static_cast<std::int64_t>(items.size()) - 1))];
  }
  // Return a number between -1 and 1.
  double real() { return static_cast<double>(between(-(1 << 20), 1 << 20)) / (1 << 20); }

 private:
  std::mt19937_64 engine_;
};

}  // namespace onedsl::test
