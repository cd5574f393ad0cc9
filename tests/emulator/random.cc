#include "tests/emulator/random.h"

#include <cstdlib>

namespace rubato::emulator {

namespace {

std::uint64_t seed_of_environment() {
  const char* text = std::getenv("EMULATOR_SEED");
  return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
}

std::uint64_t& random_state() {
  static std::uint64_t state = seed_of_environment();
  return state;
}

}  // namespace

void set_seed(std::uint64_t seed) { random_state() = seed; }

std::size_t random_below(std::size_t bound) {
  std::uint64_t x = random_state() += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return static_cast<std::size_t>((x ^ (x >> 31)) % bound);
}

}  // namespace rubato::emulator
