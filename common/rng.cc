#include "common/rng.h"

#include "common/check.h"

#include <random>

namespace rubato {
namespace {
__extension__ using Wide = unsigned __int128;
constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15ULL;  // 2^64 / golden ratio, odd
}  // namespace

std::uint64_t mix64(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

std::uint64_t Rng::next() {
  state_ += kGolden;
  return mix64(state_);
}

// Multiply-shift with rejection (Lemire 2019): exact, and rarely more than one draw.
std::uint64_t Rng::below(std::uint64_t bound) {
  CHECK_GT(bound, 0u);
  const std::uint64_t threshold = (0 - bound) % bound;
  for (;;) {
    const Wide product = static_cast<Wide>(next()) * bound;
    if (static_cast<std::uint64_t>(product) >= threshold) {
      return static_cast<std::uint64_t>(product >> 64);
    }
  }
}

double Rng::unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

Rng Rng::fork(std::uint64_t label) const {
  return Rng(mix64(mix64(seed_ + kGolden) ^ mix64(label + 2 * kGolden)));
}

std::uint64_t random_seed() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) | device();
}

}  // namespace rubato
