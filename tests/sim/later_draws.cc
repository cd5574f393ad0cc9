// What draws of stories have beside those of scenario.cc: switches that fail, volumes in trouble,
// nodes that are about to go.
// Each has a random stream of its own, so that all other stories stay as they are.
#include "tests/sim/scenario.h"

#include <algorithm>
#include <array>

namespace rubato::sim {
namespace {

constexpr std::uint64_t kSplitStream = 16;
constexpr std::uint64_t kLongDiskStream = 17;
constexpr std::uint64_t kDataStream = 18;
constexpr std::uint64_t kFolderStream = 19;
constexpr std::uint64_t kLeavingStream = 20;
constexpr double kWithSplit = 0.12;  // of stories
constexpr double kSplitAgain = 0.4;  // of them: the same nodes, once more
constexpr double kWithLongDisk = 0.03;
constexpr double kWithBadData = 0.05;
constexpr double kWithOwnFolder = 0.05;
constexpr double kWithLeaving = 0.12;
constexpr double kLeavesToo = 0.5;  // of them: another node, soon after
constexpr Duration kSplitLeast = 1s;
constexpr Duration kSplitMost = 20s;
constexpr Duration kMendedMost = 10s;  // from one split to the next
constexpr Duration kDiskLeast = 1min;
constexpr Duration kDiskMost = 3min;
constexpr Duration kDataMost = 20s;
constexpr Duration kWarnedMost = 15s;  // from the announcement until pods are told to end
constexpr Duration kLeavesAfterMost = 4s;
constexpr Duration kBackAfter = 5s;

Duration between(Rng& rng, Duration least, Duration most) {
  return least +
         std::chrono::milliseconds(rng.below(static_cast<std::uint64_t>((most - least) / 1ms)));
}

void add(Scenario& scenario, const Fault& fault) {
  scenario.trouble = std::max(scenario.trouble, fault.at + fault.spell);
  scenario.faults.push_back(fault);
}

void draw_splits(Scenario& scenario) {
  Rng rng = Rng(scenario.seed).fork(kSplitStream);
  if (!rng.chance(kWithSplit)) return;
  Fault fault{.kind = FaultKind::kSplit,
              .at = between(rng, 1s, scenario.trouble),
              .spell = between(rng, kSplitLeast, kSplitMost),
              .pick = rng.below(1000),
              .more = rng.below(1000)};
  add(scenario, fault);
  if (!rng.chance(kSplitAgain)) return;
  fault.at += fault.spell + between(rng, 0s, kMendedMost);
  fault.spell = between(rng, kSplitLeast, kSplitMost);
  add(scenario, fault);
}

void draw_long_disk(Scenario& scenario) {
  using K = FaultKind;
  static constexpr std::array kKinds = {K::kDiskSlow, K::kDiskFull, K::kDiskBroken};
  Rng rng = Rng(scenario.seed).fork(kLongDiskStream);
  if (!rng.chance(kWithLongDisk)) return;
  add(scenario, {.kind = kKinds.at(rng.below(kKinds.size())),
                 .at = between(rng, 1s, scenario.trouble),
                 .spell = between(rng, kDiskLeast, kDiskMost),
                 .more = rng.below(1000)});
}

void draw_bad_data(Scenario& scenario) {
  Rng rng = Rng(scenario.seed).fork(kDataStream);
  if (!rng.chance(kWithBadData)) return;
  add(scenario, {.kind = rng.chance(0.5) ? FaultKind::kDataSlow : FaultKind::kDataBroken,
                 .at = between(rng, 1s, scenario.trouble),
                 .spell = between(rng, 100ms, kDataMost),
                 .more = rng.below(1000)});
}

// One node has a folder of its own where all others have a volume that they share.
void draw_own_folder(Scenario& scenario) {
  Rng rng = Rng(scenario.seed).fork(kFolderStream);
  if (!rng.chance(kWithOwnFolder)) return;
  scenario.nodes[rng.below(scenario.nodes.size())].has_own_checkpoints = true;
}

// Warned in time, or nearly not at all; one node, or two of which one is to take over from the
// other.
void draw_leaving(Scenario& scenario) {
  Rng rng = Rng(scenario.seed).fork(kLeavingStream);
  if (!rng.chance(kWithLeaving)) return;
  const int nodes = rng.chance(kLeavesToo) ? 2 : 1;
  Duration at = between(rng, 1s, scenario.trouble);
  for (int i = 0; i < nodes; ++i, at += between(rng, 0s, kLeavesAfterMost)) {
    const Fault fault{.kind = rng.chance(0.5) ? FaultKind::kMaintained : FaultKind::kReclaimed,
                      .at = at,
                      .spell = between(rng, 0s, kWarnedMost),
                      .pick = rng.below(1000),
                      .more = rng.below(1000)};
    add(scenario, fault);
    scenario.trouble = std::max(scenario.trouble, fault.at + fault.spell + kDrained + kBackAfter);
  }
}

}  // namespace

void draw_later(Scenario& scenario) {
  draw_splits(scenario);
  draw_long_disk(scenario);
  draw_bad_data(scenario);
  draw_own_folder(scenario);
  draw_leaving(scenario);
}

}  // namespace rubato::sim
