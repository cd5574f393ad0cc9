#include "tests/sim/scenario.h"

#include <algorithm>
#include <array>

#include <fmt/core.h>

namespace rubato::sim {
namespace {

constexpr int kFaultsLeast = 4;
constexpr int kFaultsSpan = 10;
constexpr double kWithPolicy = 0.4;
constexpr double kClustered = 0.35;   // of stories: their faults come in a few bursts
constexpr double kLong = 0.25;        // of stories: one job goes on long after the trouble
constexpr std::uint64_t kLonger = 5;  // times as many steps
constexpr int kLateCrashes = 2;       // of pods then: their successors join one after the other
constexpr Duration kLateAfter = 15s;
constexpr int kBursts = 3;
constexpr Duration kBurst = 1500ms;
constexpr Duration kIdleLeast = 22s;        // longer than pods are waited for
constexpr std::uint64_t kWritesSpan = 220;  // of a story; crashes are put before or after any

Duration millis(std::uint64_t count) { return std::chrono::milliseconds(count); }

JobPlan draw_job(Rng& rng, int number, int capacity) {
  JobPlan job;
  job.shape.name = fmt::format("job-{}", number);
  job.per_pod = rng.chance(0.2) ? 2 : 1;
  job.min = job.per_pod * (1 + static_cast<int>(rng.below(job.per_pod == 2 ? 2 : 3)));
  job.max = std::min(job.min + job.per_pod * static_cast<int>(rng.below(4)), 8);
  job.shape.steps = 40 + rng.below(80);
  job.shape.checkpoint_every = 10 + rng.below(20);
  job.submit_at = number == 0 ? Duration(0) : millis(rng.below(20'000));
  if (rng.chance(0.3)) job.priority_class = "high";
  if (rng.chance(0.35)) job.queue = "small";
  if (rng.chance(0.06)) job.min = job.max = capacity + job.per_pod;  // never fits
  return job;
}

// Kinds of faults by how often they are drawn.
FaultKind draw_kind(Rng& rng) {
  using K = FaultKind;
  static constexpr std::array kKinds = {
      K::kPowerCut,       K::kPowerCut,        K::kNodeGone,      K::kNodeCut,
      K::kNodeCut,        K::kNodeCutOperator, K::kNodesApart,    K::kNodeFrozen,
      K::kPodFrozen,      K::kPodFrozen,       K::kPodCrash,      K::kPodCrash,
      K::kWorkerKilled,   K::kWorkerKilled,    K::kWorkerHangs,   K::kPodDeleted,
      K::kPodDeleted,     K::kCordon,          K::kNodeIdle,      K::kSuspend,
      K::kSuspend,        K::kScale,           K::kJobDeleted,    K::kReset,
      K::kSlowNetwork,    K::kDuplicates,      K::kApiAway,       K::kApiAway,
      K::kApiFlaky,       K::kApiFlaky,        K::kApiExpired,    K::kSlowWatch,
      K::kSlowWatch,      K::kSlowWatch,       K::kLateWrites,    K::kCrashAtWrite,
      K::kCrashAtWrite,   K::kCrashAtWrite,    K::kOperatorCrash, K::kOperatorFrozen,
      K::kOperatorFrozen, K::kOperatorStop,    K::kClock};
  return kKinds.at(rng.below(kKinds.size()));
}

Duration some_of(Rng& rng, Duration span) {
  return millis(rng.below(static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(span).count())));
}

Fault draw_fault(Rng& rng, Duration trouble, const std::vector<Duration>& bursts) {
  Fault fault;
  fault.kind = draw_kind(rng);
  fault.at = 1s + (bursts.empty() ? some_of(rng, trouble)
                                  : bursts[rng.below(bursts.size())] + some_of(rng, kBurst));
  fault.spell = 200ms + millis(rng.below(rng.chance(0.3) ? 12'000 : 4'000));
  if (fault.kind == FaultKind::kLateWrites || fault.kind == FaultKind::kSlowWatch)
    fault.spell += 6s;
  if (fault.kind == FaultKind::kNodeIdle) fault.spell += kIdleLeast;
  fault.pick = rng.below(1000);
  fault.more = rng.below(1000);
  if (fault.kind == FaultKind::kCrashAtWrite) {
    fault.more = rng.below(2 * kWritesSpan);
    fault.at = 0s;
  }
  return fault;
}

}  // namespace

const char* name_of(FaultKind kind) {
  static constexpr std::array<const char*, kFaultKinds> kNames = {
      "power cut",          "node gone",        "node cut off",    "node cut off from the operator",
      "two nodes apart",    "node frozen",      "pod frozen",      "pod crashes",
      "worker killed",      "worker hangs",     "pod deleted",     "node cordoned",
      "node starts no pod", "job suspended",    "job scaled",      "job deleted",
      "connections reset",  "slow network",     "duplicates",      "API away",
      "API flaky",          "API says 410",     "slow watch",      "late writes",
      "crash at a write",   "operator crashes", "operator frozen", "operator stops",
      "clock jumps"};
  return kNames.at(static_cast<std::size_t>(kind));
}

std::string to_string(const Fault& fault) {
  const auto seconds = [](Duration d) { return std::chrono::duration<double>(d).count(); };
  return fmt::format("{:.1f} s: {} ({:.1f} s; {}, {})", seconds(fault.at), name_of(fault.kind),
                     seconds(fault.spell), fault.pick, fault.more);
}

Scenario draw_scenario(std::uint64_t seed, int faults) {
  Scenario scenario;
  scenario.seed = seed;
  Rng rng = Rng(seed).fork(1);
  const int nodes = 3 + static_cast<int>(rng.below(3));
  int capacity = 0;
  const bool two_types = rng.chance(0.25);
  for (int i = 0; i < nodes; ++i) {
    NodePlan node;
    node.name = fmt::format("n{}", i);
    node.gpus = rng.chance(0.5) ? 2 : 4;
    node.gpu_type = two_types && i + 1 == nodes ? "slow" : "fast";
    if (node.gpu_type == "fast") capacity += node.gpus;
    scenario.nodes.push_back(std::move(node));
  }
  const int limit = 3 + static_cast<int>(rng.below(3));
  scenario.queues = {{"default", 0}, {"small", limit}};
  const int jobs = 1 + static_cast<int>(rng.below(4));
  for (int i = 0; i < jobs; ++i) {
    JobPlan job = draw_job(rng, i, capacity);
    job.can_finish = job.min <= capacity && (job.queue != "small" || job.min <= limit);
    scenario.jobs.push_back(std::move(job));
  }
  scenario.link_delay = seed % 3 == 0 ? Duration(30ms) : Duration(1ms);
  scenario.api_delay = seed % 5 == 0 ? Duration(40ms) : Duration(5ms);
  scenario.clocks_differ = rng.chance(0.3);
  const int count = faults >= 0 ? faults : kFaultsLeast + static_cast<int>(rng.below(kFaultsSpan));
  if (rng.chance(kWithPolicy)) {
    PolicyPlan& policy = scenario.policy.emplace();
    policy.round_seconds = 1 + static_cast<int>(rng.below(10));
    policy.growth_pause_seconds = 1 + static_cast<int>(rng.below(10));
    policy.grown_per_round = 1 + static_cast<int>(rng.below(3));
  }
  std::vector<Duration> bursts;
  if (rng.chance(kClustered))
    for (int i = 0; i < kBursts; ++i) bursts.push_back(some_of(rng, scenario.trouble));
  for (int i = 0; i < count; ++i) {
    Rng draw = Rng(seed).fork(100 + static_cast<std::uint64_t>(i));
    scenario.faults.push_back(draw_fault(draw, scenario.trouble, bursts));
  }
  Rng longer = Rng(seed).fork(2);
  if (longer.chance(kLong)) {
    scenario.jobs[0].shape.steps *= kLonger;
    for (int i = 0; i < kLateCrashes; ++i)
      scenario.faults.push_back({.kind = FaultKind::kPodCrash,
                                 .at = scenario.trouble + kLateAfter + some_of(longer, 1s),
                                 .pick = longer.below(1000)});
  }
  std::stable_sort(scenario.faults.begin(), scenario.faults.end(),
                   [](const Fault& a, const Fault& b) { return a.at < b.at; });
  return scenario;
}

Scenario sweep_scenario(std::optional<std::uint64_t> crash) {
  Scenario scenario;
  scenario.nodes = {{"n0", "fast", 2}, {"n1", "fast", 2}};
  scenario.queues = {{"default", 0}};
  JobPlan grows;
  grows.shape = {.name = "grows", .micro_batches = 12, .steps = 90, .checkpoint_every = 20};
  grows.max = 3;
  JobPlan comes;
  comes.shape = {.name = "comes", .micro_batches = 12, .steps = 15, .checkpoint_every = 5};
  comes.priority_class = "high";
  comes.min = comes.max = 2;
  comes.submit_at = 3s;
  scenario.jobs = {grows, comes};
  scenario.trouble = 12s;
  scenario.faults = {{FaultKind::kWorkerKilled, 2s, 0s, 0, 0},
                     {FaultKind::kPodDeleted, 7s, 0s, 0, 0},
                     {FaultKind::kSuspend, 9s, 1s, 0, 0}};
  if (crash) scenario.faults.push_back({FaultKind::kCrashAtWrite, 0s, 0s, 0, *crash});
  return scenario;
}

}  // namespace rubato::sim
