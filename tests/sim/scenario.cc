#include "tests/sim/scenario.h"

#include <algorithm>
#include <array>

#include <fmt/core.h>

namespace rubato::sim {
namespace {

constexpr int kFaultsLeast = 4;
constexpr int kFaultsSpan = 10;
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
      K::kPowerCut,       K::kPowerCut,        K::kNodeGone,     K::kNodeCut,
      K::kNodeCut,        K::kNodeCutOperator, K::kNodesApart,   K::kNodeFrozen,
      K::kPodFrozen,      K::kPodFrozen,       K::kPodCrash,     K::kPodCrash,
      K::kWorkerKilled,   K::kWorkerKilled,    K::kWorkerHangs,  K::kPodDeleted,
      K::kPodDeleted,     K::kCordon,          K::kSuspend,      K::kSuspend,
      K::kScale,          K::kJobDeleted,      K::kReset,        K::kSlowNetwork,
      K::kDuplicates,     K::kApiAway,         K::kApiAway,      K::kApiFlaky,
      K::kApiFlaky,       K::kApiExpired,      K::kSlowWatch,    K::kSlowWatch,
      K::kCrashAtWrite,   K::kCrashAtWrite,    K::kCrashAtWrite, K::kOperatorCrash,
      K::kOperatorFrozen, K::kOperatorFrozen,  K::kOperatorStop, K::kClock};
  return kKinds.at(rng.below(kKinds.size()));
}

}  // namespace

const char* name_of(FaultKind kind) {
  static constexpr std::array<const char*, kFaultKinds> kNames = {
      "power cut",       "node gone",      "node cut off",     "node cut off from the operator",
      "two nodes apart", "node frozen",    "pod frozen",       "pod crashes",
      "worker killed",   "worker hangs",   "pod deleted",      "node cordoned",
      "job suspended",   "job scaled",     "job deleted",      "connections reset",
      "slow network",    "duplicates",     "API away",         "API flaky",
      "API says 410",    "slow watch",     "crash at a write", "operator crashes",
      "operator frozen", "operator stops", "clock jumps"};
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
  for (int i = 0; i < count; ++i) {
    Rng draw = Rng(seed).fork(100 + static_cast<std::uint64_t>(i));
    Fault fault;
    fault.kind = draw_kind(draw);
    fault.at =
        1s + millis(draw.below(static_cast<std::uint64_t>(
                 std::chrono::duration_cast<std::chrono::milliseconds>(scenario.trouble).count())));
    fault.spell = 200ms + millis(draw.below(draw.chance(0.3) ? 12'000 : 4'000));
    fault.pick = draw.below(1000);
    fault.more =
        fault.kind == FaultKind::kCrashAtWrite ? draw.below(2 * kWritesSpan) : draw.below(1000);
    if (fault.kind == FaultKind::kCrashAtWrite) fault.at = 0s;
    scenario.faults.push_back(fault);
  }
  std::stable_sort(scenario.faults.begin(), scenario.faults.end(),
                   [](const Fault& a, const Fault& b) { return a.at < b.at; });
  return scenario;
}

}  // namespace rubato::sim
