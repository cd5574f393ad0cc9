// What members compare of their states: a digest of one of many equal parts, in turn, so that every
// bit is looked at every `parts` rounds at a small part of the cost.
#pragma once

#include "worker/step/replica.h"

#include <cstdint>

namespace rubato::worker {

// A vote carries the digest of one of so many parts: 1/64 of the state is some 0.1 % of what a step
// reads and writes of it.
constexpr std::uint32_t kStateParts = 64;

// Of part `part` of `parts` of the concatenated sections, in whole elements. Seeded with where the
// state stands, so that a stale one differs in every part. Never 0. Waits for the stream.
Result<std::uint64_t> state_digest(Replica& replica, std::uint32_t part, std::uint32_t parts,
                                   std::uint64_t seq);

}  // namespace rubato::worker
