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
constexpr double kSleepy = 0.2;       // of stories: the chart's Lease, and a leader that freezes
constexpr double kLong = 0.25;        // of stories: one job goes on long after the trouble
constexpr std::uint64_t kLonger = 4;  // times as many steps
constexpr Duration kMicro = 50ms;     // few long steps: most of what a story costs is by step
constexpr int kLateCrashes = 2;       // of pods then: their successors join one after the other
constexpr Duration kLateAfter = 15s;
constexpr Duration kSleepMost = 11s;
constexpr int kBursts = 3;
constexpr Duration kBurst = 1500ms;
constexpr std::uint64_t kPhaseLabels = 10'000;  // of random streams, one a fault
constexpr double kAtPhase = 0.4;   // of the faults that can: they strike at a place of a step
constexpr double kWithMore = 0.5;  // of stories: faults of disks, starved processes, clocks …
constexpr std::uint64_t kMoreMost = 4;
constexpr double kNarrow = 0.1;  // of stories: links move some bytes at a time
constexpr std::array<std::size_t, 3> kPieces = {7, 50, 300};
constexpr double kLongSpell = 0.25;
constexpr Duration kSpellMost = 30s;
constexpr int kFirstMore = static_cast<int>(FaultKind::kDiskSlow);
constexpr int kLastMore = static_cast<int>(FaultKind::kMemoryFlip);
constexpr double kWithPolicies = 0.12;  // of stories: other policies are put in force
constexpr double kWithZones = 0.2;
constexpr double kWithCells = 0.1;
constexpr double kWithParents = 0.2;
constexpr double kScripts = 0.35;   // of jobs: runtime pytorch
constexpr int kEndsEarlyOneIn = 4;  // of these: the script ends the job
constexpr int kPoliciesMost = 3;
constexpr double kWithRare = 0.15;    // of stories: one of the faults of an installation's life
constexpr double kMixed = 0.08;       // of stories: some workers are of the build before
constexpr double kOldBuilds = 0.4;    // of pods then
constexpr Duration kIdleLeast = 22s;  // longer than pods are waited for
constexpr std::uint64_t kWritesSpan = 220;  // of a story; crashes are put before or after any

Duration millis(std::uint64_t count) { return std::chrono::milliseconds(count); }

JobPlan draw_job(Rng& rng, int number, int capacity) {
  JobPlan job;
  job.shape.name = fmt::format("job-{}", number);
  job.per_pod = rng.chance(0.2) ? 2 : 1;
  job.min = job.per_pod * (1 + static_cast<int>(rng.below(job.per_pod == 2 ? 2 : 3)));
  job.max = std::min(job.min + job.per_pod * static_cast<int>(rng.below(4)), 8);
  job.shape.micro_batches = 18;
  job.shape.steps = 27 + rng.below(53);
  job.shape.checkpoint_every = 7 + rng.below(13);
  job.submit_at = number == 0 ? Duration(0) : millis(rng.below(20'000));
  if (rng.chance(0.3)) job.priority_class = "high";
  if (rng.chance(0.35)) job.queue = "small";
  if (rng.chance(0.06)) {  // never fits
    job.min = job.max = capacity + job.per_pod;
    job.shape.micro_batches = static_cast<std::uint32_t>(job.max);
  }
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

Duration part_of(Rng& rng, Duration span) {
  return millis(rng.below(static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(span).count())));
}

Fault draw_fault(Rng& rng, Duration trouble, const std::vector<Duration>& bursts) {
  Fault fault;
  fault.kind = draw_kind(rng);
  fault.at = 1s + (bursts.empty() ? part_of(rng, trouble)
                                  : bursts[rng.below(bursts.size())] + part_of(rng, kBurst));
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

// Some of the faults strike at a place of a step instead of at a time. Places that are seldom
// reached are drawn more often. Drawn apart from all else.
void strike_at_phases(std::uint64_t seed, std::vector<Fault>& faults) {
  using P = Phase;
  static constexpr std::array kPlaces = {
      P::kCompute,  P::kReduce,   P::kCommit, P::kApply,  P::kPublish, P::kFinish, P::kCheckpoint,
      P::kPull,     P::kPull,     P::kFollow, P::kFollow, P::kDonate,  P::kDonate, P::kPrepare,
      P::kPrepared, P::kPrepared, P::kSwitch, P::kSwitch, P::kAbort,   P::kFence,  P::kForm,
      P::kConnect,  P::kLevel,    P::kLevel,  P::kLevel,  P::kLevel};
  for (std::size_t i = 0; i < faults.size(); ++i) {
    Rng rng = Rng(seed).fork(kPhaseLabels + i);
    if (strikes_at_phases(faults[i].kind) && rng.chance(kAtPhase))
      faults[i].phase = kPlaces.at(rng.below(kPlaces.size()));
  }
}

// Kinds that came later are drawn apart, so that the stories of old keep the faults they had.
void draw_more_faults(std::uint64_t seed, Duration trouble, std::vector<Fault>& faults) {
  Rng rng = Rng(seed).fork(4);
  if (!rng.chance(kWithMore)) return;
  const int count = 1 + static_cast<int>(rng.below(kMoreMost));
  for (int i = 0; i < count; ++i) {
    Fault fault;
    fault.kind = static_cast<FaultKind>(
        kFirstMore +
        static_cast<int>(rng.below(static_cast<std::uint64_t>(kLastMore + 1 - kFirstMore))));
    fault.at = 1s + part_of(rng, trouble);
    fault.spell = 100ms + part_of(rng, rng.chance(kLongSpell) ? kSpellMost : kSpellMost / 8);
    fault.pick = rng.below(1000);
    fault.more = rng.below(1000);
    faults.push_back(fault);
  }
}

// What befalls an installation now and then. Drawn apart, like all that came later.
void draw_rare_fault(Scenario& scenario) {
  using K = FaultKind;
  static constexpr std::array kKinds = {K::kLeaseLost, K::kStoreRestored, K::kResize,
                                        K::kResize,    K::kNextVersion,   K::kNextVersion};
  Rng mixed = Rng(scenario.seed).fork(7);
  if (mixed.chance(kMixed)) scenario.old_builds = kOldBuilds;
  Rng rng = Rng(scenario.seed).fork(8);
  if (!rng.chance(kWithRare)) return;
  Fault fault;
  fault.kind = kKinds.at(rng.below(kKinds.size()));
  fault.at = 1s + part_of(rng, scenario.trouble);
  fault.spell = 5s + part_of(rng, kSpellMost);
  fault.pick = rng.below(1000);
  fault.more = rng.below(1000);
  if (fault.kind == K::kStoreRestored) fault.spell += part_of(rng, kSpellMost);
  // What it leaves behind is mended within the time of trouble.
  if (fault.kind == K::kStoreRestored || fault.kind == K::kNextVersion)
    scenario.trouble = std::max(scenario.trouble, fault.at + fault.spell);
  scenario.faults.push_back(fault);
}

void draw_policies(Scenario& scenario) {
  Rng rng = Rng(scenario.seed).fork(9);
  if (!rng.chance(kWithPolicies)) return;
  const int count = 1 + static_cast<int>(rng.below(kPoliciesMost));
  for (int i = 0; i < count; ++i)
    scenario.faults.push_back({.kind = FaultKind::kPolicy,
                               .at = 1s + part_of(rng, scenario.trouble),
                               .pick = rng.below(1000),
                               .more = rng.below(1000)});
}

// Nodes in two zones, and jobs that are to be in one: those must that any node with room holds
// whole, whatever happens to its zone.
void draw_zones(Scenario& scenario) {
  Rng rng = Rng(scenario.seed).fork(12);
  if (!rng.chance(kWithZones)) return;
  for (NodePlan& node : scenario.nodes) node.zone = rng.chance(0.5) ? "a" : "b";
  const bool are_resized = std::ranges::any_of(scenario.faults, [](const Fault& fault) {
    return fault.kind == FaultKind::kScale || fault.kind == FaultKind::kResize;
  });
  for (JobPlan& job : scenario.jobs)
    if (rng.chance(0.7))
      job.near =
          job.min == job.per_pod && !are_resized && rng.chance(0.7) ? "required" : "preferred";
}

// A node or two for each queue; those of both together may be more than there are.
void draw_cells(Scenario& scenario) {
  Rng rng = Rng(scenario.seed).fork(13);
  if (!rng.chance(kWithCells)) return;
  for (QueuePlan& queue : scenario.queues) queue.cells = static_cast<int>(rng.below(3));
}

// All queues may be parts of one that may hold less than there is, and enough for each job alone.
void draw_parents(Scenario& scenario) {
  Rng rng = Rng(scenario.seed).fork(15);
  if (!rng.chance(kWithParents)) return;
  if (std::ranges::any_of(scenario.queues, [](const auto& queue) { return queue.cells > 0; }))
    return;
  int all = 0;
  for (const NodePlan& node : scenario.nodes) all += node.gpu_type == "fast" ? node.gpus : 0;
  int least = 1;
  for (const JobPlan& job : scenario.jobs)
    if (job.can_finish) least = std::max(least, job.min);
  for (QueuePlan& queue : scenario.queues) queue.parent = "whole";
  const auto more = static_cast<std::uint64_t>(std::max(all - least, 0)) + 1;
  scenario.queues.push_back({"whole", least + static_cast<int>(rng.below(more))});
}

void draw_scripts(Scenario& scenario) {
  Rng rng = Rng(scenario.seed).fork(14);
  for (JobPlan& job : scenario.jobs) {
    job.shape.is_script = rng.chance(kScripts);
    // Beside a worker of the build before no script can end its job.
    const bool may_end = job.shape.is_script && scenario.old_builds == 0;
    if (may_end && job.shape.steps % kEndsEarlyOneIn == 0)
      job.shape.ends_at = job.shape.steps * 2 / 3;
  }
}

}  // namespace

bool strikes_at_phases(FaultKind kind) {
  return kind == FaultKind::kWorkerKilled || kind == FaultKind::kWorkerHangs ||
         kind == FaultKind::kPodCrash || kind == FaultKind::kPowerCut;
}

const char* name_of(FaultKind kind) {
  static constexpr std::array<const char*, kFaultKinds> kNames = {"power cut",
                                                                  "node gone",
                                                                  "node cut off",
                                                                  "node cut off from the operator",
                                                                  "two nodes apart",
                                                                  "node frozen",
                                                                  "pod frozen",
                                                                  "pod crashes",
                                                                  "worker killed",
                                                                  "worker hangs",
                                                                  "pod deleted",
                                                                  "node cordoned",
                                                                  "node starts no pod",
                                                                  "job suspended",
                                                                  "job scaled",
                                                                  "job deleted",
                                                                  "connections reset",
                                                                  "slow network",
                                                                  "duplicates",
                                                                  "API away",
                                                                  "API flaky",
                                                                  "API says 410",
                                                                  "slow watch",
                                                                  "late writes",
                                                                  "crash at a write",
                                                                  "operator crashes",
                                                                  "operator frozen",
                                                                  "operator stops",
                                                                  "clock jumps",
                                                                  "Lease lost",
                                                                  "store restored",
                                                                  "disk slow",
                                                                  "disk full",
                                                                  "disk broken",
                                                                  "disk late",
                                                                  "bit flips",
                                                                  "starved",
                                                                  "node's clock jumps",
                                                                  "bad newcomer",
                                                                  "Lease deleted",
                                                                  "secret deleted",
                                                                  "pod deleted at once",
                                                                  "node object deleted",
                                                                  "job recreated",
                                                                  "many pods crash",
                                                                  "a bit of memory flips",
                                                                  "job resized",
                                                                  "the next version",
                                                                  "another policy",
                                                                  "nodes split",
                                                                  "data slow",
                                                                  "data broken",
                                                                  "node maintained",
                                                                  "node reclaimed"};
  return kNames.at(static_cast<std::size_t>(kind));
}

const char* name_of(Illness illness) {
  static constexpr std::array<const char*, kIllnesses + 1> kNames = {
      "well",          "computes other bits",   "has no data", "has half of the data",
      "has no memory", "speaks another version"};
  return kNames.at(static_cast<std::size_t>(illness));
}

std::string to_string(const Fault& fault) {
  const auto seconds = [](Duration d) { return std::chrono::duration<double>(d).count(); };
  const std::string place = fault.phase ? fmt::format(" at {}", name_of(*fault.phase)) : "";
  return fmt::format("{:.1f} s: {}{} ({:.1f} s; {}, {})", seconds(fault.at), name_of(fault.kind),
                     place, seconds(fault.spell), fault.pick, fault.more);
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
  scenario.times.micro = kMicro;
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
    for (int i = 0; i < kBursts; ++i) bursts.push_back(part_of(rng, scenario.trouble));
  for (int i = 0; i < count; ++i) {
    Rng draw = Rng(seed).fork(100 + static_cast<std::uint64_t>(i));
    scenario.faults.push_back(draw_fault(draw, scenario.trouble, bursts));
  }
  strike_at_phases(seed, scenario.faults);
  Rng longer = Rng(seed).fork(2);
  if (longer.chance(kLong)) {
    scenario.jobs[0].shape.steps *= kLonger;
    for (int i = 0; i < kLateCrashes; ++i)
      scenario.faults.push_back({.kind = FaultKind::kPodCrash,
                                 .at = scenario.trouble + kLateAfter + part_of(longer, 1s),
                                 .pick = longer.below(1000)});
  }
  Rng narrow = Rng(seed).fork(6);
  if (narrow.chance(kNarrow)) scenario.pieces = kPieces.at(narrow.below(kPieces.size()));
  draw_big(scenario);
  if (faults < 0) draw_more_faults(seed, scenario.trouble, scenario.faults);
  Rng sleepy = Rng(seed).fork(3);
  if (sleepy.chance(kSleepy)) {
    scenario.lease = kChartLease;
    scenario.faults.push_back({.kind = FaultKind::kOperatorFrozen,
                               .at = 2s + part_of(sleepy, scenario.trouble),
                               .spell = 1s + part_of(sleepy, kSleepMost),
                               .pick = 1});  // who leads then
  }
  if (faults < 0) draw_rare_fault(scenario);
  if (faults < 0) draw_policies(scenario);
  if (faults < 0) draw_zones(scenario);
  if (faults < 0) draw_cells(scenario);
  if (faults < 0) draw_parents(scenario);
  draw_scripts(scenario);
  if (faults < 0) draw_later(scenario);
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
