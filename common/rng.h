// Randomness is a parameter. Rng is for jitter, backoff and test schedules; it is never used where
// a training result could see it (those streams are keyed by logical ids: worker/data,
// worker/model).
#pragma once

#include <cstdint>

namespace rubato {

// SplitMix64 (Steele, Lea, Flood 2014): one 64-bit state, equal on every platform. Not thread-safe.
class Rng {
 public:
  explicit Rng(std::uint64_t seed) : seed_(seed), state_(seed) {}
  std::uint64_t next();
  // Uniform in [0, bound); bound > 0.
  std::uint64_t below(std::uint64_t bound);
  // Uniform in [0, 1).
  double unit();
  bool chance(double probability) { return unit() < probability; }
  // An independent stream for a part of the work; equal (seed, label) gives an equal stream, no
  // matter how much was drawn before.
  Rng fork(std::uint64_t label) const;

 private:
  std::uint64_t seed_;
  std::uint64_t state_;
};

// The SplitMix64 finaliser: a good 64-bit mix of a key, for order-free digests.
std::uint64_t mix64(std::uint64_t x);
// A seed that differs between processes, from the operating system.
std::uint64_t random_seed();

}  // namespace rubato
