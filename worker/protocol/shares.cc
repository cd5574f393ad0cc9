#include "worker/protocol/shares.h"

#include "common/check.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

namespace rubato::wire {

MicroRange even_share(std::uint32_t rank, std::uint32_t members, std::uint32_t micro_batches) {
  CHECK_LT(rank, members);
  CHECK_LE(members, micro_batches);
  const std::uint32_t base = micro_batches / members;
  const std::uint32_t extra = micro_batches % members;
  const std::uint32_t begin = rank * base + std::min(rank, extra);
  return {begin, begin + base + (rank < extra ? 1u : 0u)};
}

namespace {
// Appends micro-batch `index`, growing the last range where it touches.
void append(std::vector<MicroRange>& ranges, std::uint32_t index) {
  if (!ranges.empty() && ranges.back().end == index) {
    ++ranges.back().end;
  } else {
    ranges.push_back({index, index + 1});
  }
}
}  // namespace

std::vector<std::vector<MicroRange>> salvage_shares(
    const std::vector<std::vector<MicroRange>>& held, std::uint32_t micro_batches) {
  CHECK(!held.empty());
  std::vector<int> owner(micro_batches, -1);
  for (std::size_t rank = 0; rank < held.size(); ++rank) {
    for (const MicroRange& range : held[rank]) {
      CHECK_LE(range.end, micro_batches);
      for (std::uint32_t i = range.begin; i < range.end; ++i) {
        CHECK_EQ(owner[i], -1);  // two survivors never hold the same micro-batch of one round
        owner[i] = static_cast<int>(rank);
      }
    }
  }
  // Least still to compute first; held work costs nothing.
  using Load = std::pair<std::uint32_t, std::uint32_t>;  // (to compute, rank)
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (std::uint32_t rank = 0; rank < held.size(); ++rank) loads.emplace(0u, rank);
  for (std::uint32_t i = 0; i < micro_batches; ++i) {
    if (owner[i] != -1) continue;
    const auto [load, rank] = loads.top();
    loads.pop();
    owner[i] = static_cast<int>(rank);
    loads.emplace(load + 1, rank);
  }
  std::vector<std::vector<MicroRange>> shares(held.size());
  for (std::uint32_t i = 0; i < micro_batches; ++i) {
    append(shares[static_cast<std::size_t>(owner[i])], i);
  }
  return shares;
}

}  // namespace rubato::wire
