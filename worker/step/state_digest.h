// What members compare of their states: a digest of one of many equal parts, in turn, so that every
// bit is looked at every `parts` rounds at a small part of the cost.
#pragma once

#include "worker/step/replica.h"

#include <cstdint>
#include <span>

namespace rubato::worker {

// A vote carries the digest of one of so many parts. What that costs of a step, and what all of the
// state does: docs/benchmarks.md#step.
constexpr std::uint32_t kStateParts = 64;

struct StatePart {
  std::uint32_t part = 0;
  std::uint32_t parts = 1;  // 1: all of it
};

// Of a part of the concatenated sections, in whole elements. Seeded with where the state stands, so
// that a stale one differs in every part. Never 0. Waits for the stream.
Result<std::uint64_t> state_digest(Device& device, Stream& stream, std::span<const Buffer> sections,
                                   const StatePart& part, std::uint64_t seq, std::uint64_t step);
Result<std::uint64_t> state_digest(Replica& replica, std::uint32_t part, std::uint32_t parts,
                                   std::uint64_t seq);

}  // namespace rubato::worker
