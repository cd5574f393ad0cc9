// Big stories: one job of up to 32 members beside small ones, on nodes of which a second batch
// comes later, and several losses at once.
#include "tests/sim/scenario.h"

#include <algorithm>
#include <array>

namespace rubato::sim {
namespace {

constexpr double kBig = 0.06;   // of stories; in two of a hundred so many members must train
constexpr double kAlone = 0.9;  // of them: no small jobs, so that all 32 GPUs can come to one
constexpr int kNodesLeast = 8;
constexpr int kNodesSpan = 5;
constexpr int kLateLeast = 2;  // nodes: eight GPUs that appear at once
constexpr int kLateSpan = 3;
constexpr int kGpusPerNode = 4;
constexpr int kMembersLeast = 8;
constexpr int kMembersMost = 32;
constexpr std::uint32_t kMicroBatches = 128;  // long steps: most of what a story costs is by step
constexpr double kBlocked =
    0.1;  // a short job has eight GPUs at first, and gives them back at once
constexpr int kBlockedGpus = 8;
constexpr int kLossesLeast = 4;
constexpr int kLossesSpan = 4;

Duration drawn_millis(std::uint64_t count) { return std::chrono::milliseconds(count); }

void draw_nodes(Scenario& scenario, Rng& rng) {
  const int nodes = kNodesLeast + static_cast<int>(rng.below(kNodesSpan));
  const int late = kLateLeast + static_cast<int>(rng.below(kLateSpan));
  const Duration added_at = 5s + drawn_millis(rng.below(15'000));
  scenario.nodes.clear();
  for (int i = 0; i < nodes; ++i) {
    NodePlan node;
    node.name = "n" + std::to_string(i);
    node.gpu_type = "fast";
    node.gpus = kGpusPerNode;
    if (i + late >= nodes) node.added_at = added_at;
    scenario.nodes.push_back(std::move(node));
  }
}

void draw_jobs(Scenario& scenario, Rng& rng) {
  if (rng.chance(kAlone)) scenario.jobs.clear();
  // What never fits is for small stories.
  std::erase_if(scenario.jobs, [](const JobPlan& job) { return job.min > kMembersLeast; });
  JobPlan big;
  big.shape = {.name = "big",
               .micro_batches = kMicroBatches,
               .steps = 30 + rng.below(30),
               .checkpoint_every = 5 + rng.below(10)};
  big.per_pod = rng.chance(0.3) ? 2 : 1;
  big.min = kMembersLeast;
  big.max = kMembersMost;
  scenario.jobs.insert(scenario.jobs.begin(), big);
  if (!rng.chance(kBlocked)) return;
  JobPlan blocker;
  blocker.shape = {
      .name = "blocker", .micro_batches = 12, .steps = 20 + rng.below(60), .checkpoint_every = 20};
  blocker.min = blocker.max = kBlockedGpus;
  blocker.priority_class = "high";
  scenario.jobs.push_back(std::move(blocker));
}

void draw_losses(Scenario& scenario, Rng& rng) {
  using K = FaultKind;
  static constexpr std::array kKinds = {K::kPowerCut,     K::kPodCrash,   K::kWorkerKilled,
                                        K::kWorkerKilled, K::kPodDeleted, K::kNodeCut};
  const bool of_one_kind = rng.chance(0.5);
  const auto at = 4s + drawn_millis(rng.below(30'000));
  FaultKind kind = kKinds.at(rng.below(kKinds.size()));
  const int losses = kLossesLeast + static_cast<int>(rng.below(kLossesSpan));
  for (int i = 0; i < losses; ++i) {
    if (!of_one_kind) kind = kKinds.at(rng.below(kKinds.size()));
    scenario.faults.push_back({.kind = kind,
                               .at = at + drawn_millis(rng.below(20)),
                               .spell = 200ms + drawn_millis(rng.below(8'000)),
                               .pick = rng.below(1000),
                               .more = rng.below(1000)});
  }
}

}  // namespace

void draw_big(Scenario& scenario) {
  Rng rng = Rng(scenario.seed).fork(4);
  if (!rng.chance(kBig)) return;
  draw_nodes(scenario, rng);
  draw_jobs(scenario, rng);
  for (std::uint64_t bursts = 1 + rng.below(2); bursts > 0; --bursts) draw_losses(scenario, rng);
}

}  // namespace rubato::sim
