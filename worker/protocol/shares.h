// Who computes which micro-batches. Both sides of the wire use this one function, so that it is
// part of the protocol.
#pragma once

#include <cstdint>
#include <vector>

namespace rubato::wire {

struct MicroRange {  // [begin, end)
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  std::uint32_t size() const { return end - begin; }
  auto operator<=>(const MicroRange&) const = default;
};

// The even split of `micro_batches` over `members`: contiguous, sizes differ by at most one, larger
// ones first. members <= micro_batches.
MicroRange even_share(std::uint32_t rank, std::uint32_t members, std::uint32_t micro_batches);

// Shares of an interrupted round: every micro-batch once; what a survivor holds stays with it, the
// missing ones go to whoever has least left to compute, lowest first, ties to the lower rank.
// `held[rank]`: disjoint ranges, of one member at least. Cost: O(micro_batches * log members).
std::vector<std::vector<MicroRange>> salvage_shares(
    const std::vector<std::vector<MicroRange>>& held, std::uint32_t micro_batches);

}  // namespace rubato::wire
