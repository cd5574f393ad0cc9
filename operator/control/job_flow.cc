#include "operator/control/job_flow.h"

#include "operator/api/conditions.h"
#include "operator/control/cluster_series.h"
#include "operator/control/metric_catalog.h"

#include <algorithm>
#include <iterator>

namespace rubato::control {
namespace {

using api::TrainingJob;
namespace condition = api::condition;
namespace reason = api::reason;

const std::vector<double> kWaitBuckets = {0.5, 1,   2,    5,    10,    30,    60,   120,
                                          300, 600, 1800, 3600, 10800, 43200, 86400};

double seconds_between(WallTime from, WallTime to) {
  return std::max(0.0, std::chrono::duration<double>(to - from).count());
}

std::optional<double> waited(const TrainingJob& before, const TrainingJob& after) {
  if (held(before) > 0 || held(after) == 0 || !after.status.allocation->since) return std::nullopt;
  std::optional<WallTime> from = before.meta.creation_time;
  const auto* queued = api::find_condition(before.status.conditions, condition::kQueued);
  if (queued != nullptr && queued->last_transition_time) from = queued->last_transition_time;
  if (!from) return std::nullopt;
  return seconds_between(*from, *after.status.allocation->since);
}

// A suspension begins a startTime anew; GPU time that was of use is of the job's whole life.
std::optional<double> first_step(const TrainingJob& before, const TrainingJob& after) {
  const bool has_trained =
      before.status.start_time || before.status.useful_gpu_seconds.value_or(0) > 0;
  if (has_trained || !after.status.start_time || !after.meta.creation_time) return std::nullopt;
  return seconds_between(*after.meta.creation_time, *after.status.start_time);
}

// Who is resumed gave its GPUs back long before, or never had any.
std::string evicted(const TrainingJob& before, const TrainingJob& after) {
  if (api::is_true(before.status.conditions, condition::kSuspended)) return "";
  const auto* was = api::find_condition(before.status.conditions, condition::kQueued);
  const auto* is = api::find_condition(after.status.conditions, condition::kQueued);
  const bool had_gpus = was != nullptr && was->status != api::ConditionStatus::kTrue &&
                        was->reason == reason::kPlaced;
  if (!had_gpus || is == nullptr || is->status != api::ConditionStatus::kTrue) return "";
  return std::string(bounded_reason(is->reason));
}

std::map<std::string_view, double> by_use(const TrainingJob& job) {
  const auto lost = job.status.lost_gpu_seconds.value_or(api::LostGpuSeconds{});
  return {{"useful", job.status.useful_gpu_seconds.value_or(0)},
          {"queue", lost.queue},
          {"rescale", lost.rescale},
          {"failure", lost.failure},
          {"checkpoint", lost.checkpoint},
          {"straggling", lost.straggling.value_or(0)}};
}

// Of waiting and of the end, as docs/runbook.md has them: the test `runbook` compares the two.
constexpr std::string_view kReasons[] = {
    reason::kWaitingForGpus, reason::kWaitingForRelease, reason::kQueueLimit, reason::kLoadLimit,
    reason::kOthersNotPreemptible, reason::kGuaranteeFull, reason::kQueueNotFound,
    reason::kQueueForbidden, reason::kPodForbidden, reason::kNeverFits, reason::kPreempted,
    reason::kRequeued, reason::kGangTimeout, reason::kNodesAvoided, reason::kNodesUnavailable,
    reason::kNodesRefused, reason::kClaimNotFound, reason::kClaimsDenied, reason::kClaimLost,
    reason::kClaimNotBound, reason::kClaimInUse, reason::kStorageClassNotFound,
    reason::kStepsReached, reason::kEndedByScript, reason::kDeadlineExceeded, reason::kMaxRestarts,
    reason::kInvalidTemplate, reason::kInvalidSpec,
    // Of workers.
    "NonFinite", "LedgerMismatch", "DataNotFound", "DataInvalid", "DataUnreadable", "DataDamaged",
    "DeviceUnavailable", "DeviceLost", "Diverged", "OutOfMemory", "BadTraining", "StartFailed",
    "RecoveryFailed", "FingerprintMismatch", "CheckpointUnusable", "CheckpointFailed",
    "CheckpointPathTaken", "InitFromUnusable", "NoCommonVersion",
    // Of scripts.
    "BatchMismatch", "DatasetChanged", "DatasetEmpty", "GradScaler", "HiddenState",
    "IterableDataset", "NoState", "NotDeterministic", "NothingToTrain", "OverlappingTensors",
    "ScriptEnded", "StateChanged", "StatefulForward", "UnknownParameter", "UnsupportedDevice",
    "UnsupportedOptimizer", "UnsupportedState", "UnsupportedTensor", "UnsupportedTrainer"};

}  // namespace

std::string_view bounded_reason(std::string_view given) {
  const auto* found = std::ranges::find(kReasons, given);
  return found == std::end(kReasons) ? std::string_view("Other") : *found;
}

JobDifference difference(const TrainingJob& before, const TrainingJob& after) {
  JobDifference out;
  out.waited_seconds = waited(before, after);
  out.first_step_seconds = first_step(before, after);
  out.evicted = evicted(before, after);
  if (!api::is_finished(before.status.conditions) && api::is_finished(after.status.conditions)) {
    out.ended_state = api::state_of(after.status.conditions);
    out.ended_reason =
        bounded_reason(api::find_condition(after.status.conditions, out.ended_state)->reason);
  }
  const auto was = by_use(before);
  for (const auto& [use, seconds] : by_use(after))
    if (seconds != was.at(use)) out.gpu_seconds[use] = seconds - was.at(use);
  const auto recomputed = [](const TrainingJob& job) {
    return job.status.progress ? job.status.progress->recomputed_steps : 0;
  };
  out.recomputed_steps = std::max<std::int64_t>(0, recomputed(after) - recomputed(before));
  const auto restarts = [](const TrainingJob& job) {
    return job.status.restarts.value_or(api::Restarts{});
  };
  out.restarts = std::max(0, restarts(after).count - restarts(before).count);
  out.lost_pods = std::max(0, restarts(after).infrastructure - restarts(before).infrastructure);
  return out;
}

std::string JobFlow::bounded_queue(const std::string& queue) {
  const std::lock_guard lock(mutex_);
  if (queues_.contains(queue)) return queue;
  if (queues_.size() >= kQueuesWithSeries) return std::string(kOtherSeries);
  queues_.insert(queue);
  return queue;
}

void JobFlow::add_gpu_seconds(const std::string& queue, std::string_view use, double seconds) {
  const std::lock_guard lock(mutex_);
  double& overdrawn = overdrawn_[{queue, use}];
  const double due = seconds - overdrawn;
  overdrawn = std::max(0.0, -due);
  const MetricInfo& info = metric("rubato_gpu_seconds_total");
  metrics_
      .counter(std::string(info.name), std::string(info.help),
               {{"queue", queue}, {"use", std::string(use)}})
      .add(std::max(0.0, due));
}

void JobFlow::note(const TrainingJob& before, const TrainingJob& after) {
  if (before.meta.uid != after.meta.uid) return;
  const JobDifference seen = difference(before, after);
  if (seen == JobDifference{}) return;
  const std::string queue = bounded_queue(after.spec.queue);
  const auto count = [&](const char* name, Labels labels, double amount) {
    if (amount <= 0) return;
    labels["queue"] = queue;
    metrics_.counter(name, std::string(metric(name).help), labels).add(amount);
  };
  const auto observe = [&](const char* name, std::optional<double> seconds) {
    if (!seconds) return;
    metrics_.histogram(name, std::string(metric(name).help), {{"queue", queue}}, kWaitBuckets)
        .observe(*seconds);
  };
  observe("rubato_job_wait_seconds", seen.waited_seconds);
  observe("rubato_job_first_step_seconds", seen.first_step_seconds);
  if (!seen.evicted.empty()) count("rubato_evictions_total", {{"reason", seen.evicted}}, 1);
  if (!seen.ended_state.empty())
    count("rubato_jobs_ended_total", {{"state", seen.ended_state}, {"reason", seen.ended_reason}},
          1);
  for (const auto& [use, seconds] : seen.gpu_seconds) add_gpu_seconds(queue, use, seconds);
  count("rubato_recomputed_steps_total", {}, static_cast<double>(seen.recomputed_steps));
  count("rubato_restarts_total", {{"charged", "true"}}, static_cast<double>(seen.restarts));
  count("rubato_restarts_total", {{"charged", "false"}}, static_cast<double>(seen.lost_pods));
}

}  // namespace rubato::control
