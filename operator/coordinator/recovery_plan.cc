#include "operator/coordinator/recovery_plan.h"

#include "common/check.h"
#include "common/planted.h"

#include <algorithm>
#include <numeric>

namespace rubato::coordinator {
namespace {

using wire::MicroRange;

// Ranges that are in bounds, in order and apart; a standing that says otherwise holds nothing.
std::vector<MicroRange> held_of(const wire::WorkerStanding& standing, std::uint32_t micro_batches) {
  std::vector<MicroRange> held;
  for (const wire::Range& range : standing.held()) {
    const std::uint32_t from = held.empty() ? 0 : held.back().end;
    if (range.begin() < from || range.end() <= range.begin() || range.end() > micro_batches)
      return {};
    held.push_back({range.begin(), range.end()});
  }
  return held;
}

bool overlaps(const std::vector<bool>& taken, const std::vector<MicroRange>& ranges) {
  for (const MicroRange& range : ranges)
    for (std::uint32_t m = range.begin; m < range.end; ++m)
      if (taken[m]) return true;
  return false;
}

}  // namespace

RecoveryPlan plan_recovery(const std::vector<wire::WorkerStanding>& standings,
                           std::uint32_t micro_batches,
                           const std::vector<wire::WorkerStanding>& heard) {
  RecoveryPlan plan;
  const wire::WorkerStanding* ahead = nullptr;
  for (const auto* all : {&standings, &heard})
    for (const auto& standing : *all)
      if (standing.has_state() &&
          (ahead == nullptr || (standing.seq() > ahead->seq() && !planted(Bug::kDropRound))))
        ahead = &standing;
  CHECK(ahead != nullptr);
  plan.base_seq = ahead->seq();
  if (plan.base_seq > 0 && ahead->has_last()) plan.decision = ahead->last();

  std::vector<std::size_t> rank;  // positions of those that level
  for (std::size_t i = 0; i < standings.size(); ++i) {
    const auto& s = standings[i];
    const bool one_behind = s.seq() + 1 == plan.base_seq && s.reduced() && plan.decision;
    plan.levels.push_back(s.has_state() && (s.seq() == plan.base_seq || one_behind));
    if (plan.levels.back()) rank.push_back(i);
  }
  // Held by two: the younger generation's standing counts, the other one holds nothing.
  std::vector<std::size_t> youngest_first(rank.size());
  std::iota(youngest_first.begin(), youngest_first.end(), 0u);
  std::stable_sort(youngest_first.begin(), youngest_first.end(), [&](std::size_t a, std::size_t b) {
    return standings[rank[a]].generation() > standings[rank[b]].generation();
  });
  std::vector<std::vector<MicroRange>> held(rank.size());
  std::vector<bool> taken(micro_batches, false);
  for (const std::size_t r : youngest_first) {
    const auto& standing = standings[rank[r]];
    if (standing.seq() != plan.base_seq) continue;  // of another round
    const auto ranges = held_of(standing, micro_batches);
    if (overlaps(taken, ranges) && !planted(Bug::kSampleTwice)) continue;
    for (const MicroRange& range : ranges) {
      std::fill(taken.begin() + range.begin, taken.begin() + range.end, true);
      plan.salvaged += range.size();
    }
    held[r] = ranges;
  }
  plan.recomputed = micro_batches - plan.salvaged;
  plan.shares.resize(standings.size());
  if (rank.empty()) return plan;  // `heard` alone knows the round that begins
  const auto shares = wire::salvage_shares(held, micro_batches);
  for (std::size_t r = 0; r < rank.size(); ++r) plan.shares[rank[r]] = shares[r];
  return plan;
}

}  // namespace rubato::coordinator
