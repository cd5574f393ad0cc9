// What draws of stories have beside those of scenario.cc: switches that fail, volumes in trouble.
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
constexpr double kWithSplit = 0.12;  // of stories
constexpr double kSplitAgain = 0.4;  // of them: the same nodes, once more
constexpr double kWithLongDisk = 0.03;
constexpr double kWithBadData = 0.05;
constexpr double kWithOwnFolder = 0.05;
constexpr Duration kSplitLeast = 1s;
constexpr Duration kSplitMost = 20s;
constexpr Duration kMendedMost = 10s;  // from one split to the next
constexpr Duration kDiskLeast = 1min;
constexpr Duration kDiskMost = 3min;
constexpr Duration kDataMost = 20s;

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

}  // namespace

void draw_later(Scenario& scenario) {
  draw_splits(scenario);
  draw_long_disk(scenario);
  draw_bad_data(scenario);
  draw_own_folder(scenario);
}

}  // namespace rubato::sim
