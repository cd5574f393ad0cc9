// Where the emulator's orders come from: SplitMix64, seeded by EMULATOR_SEED of the environment (1
// without it). Guarded by lock() of streams.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace rubato::emulator {

void set_seed(std::uint64_t seed);
std::size_t random_below(std::size_t bound);

template <class Array>
void shuffle(Array& things) {
  for (std::size_t i = things.size(); i > 1; --i) std::swap(things[i - 1], things[random_below(i)]);
}

}  // namespace rubato::emulator
