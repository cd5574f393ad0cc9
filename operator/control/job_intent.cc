#include "operator/control/job_intent.h"

#include <algorithm>

#include <fmt/core.h>

namespace rubato::control {

namespace {

using coordinator::Phase;
constexpr std::string_view kSuspendReason = "the job is suspended";

bool holds_pods(const api::TrainingJob& job) {
  return job.status.allocation && !job.status.allocation->pods.empty();
}

// A new allocation has new pods, for ordinals are never used again.
bool is_of_the_stopped(const coordinator::View& view, const api::AllocatedPod& pod) {
  const auto& retired = view.retired_pods;
  return std::find(retired.begin(), retired.end(), pod.name) != retired.end() ||
         std::any_of(view.members.begin(), view.members.end(),
                     [&](const auto& member) { return member.pod == pod.name; });
}

Decision stop(std::string why) { return {Intent::kStop, std::move(why), "", ""}; }

}  // namespace

bool finishes_a_stop(const api::TrainingJob& job, const coordinator::View* view) {
  if (view == nullptr || !view->stop_since || !holds_pods(job)) return false;
  if (view->end == Phase::kFinished || view->end == Phase::kFailed) return false;
  const auto& pods = job.status.allocation->pods;
  if (std::none_of(pods.begin(), pods.end(),
                   [&](const auto& pod) { return is_of_the_stopped(*view, pod); })) {
    return false;
  }
  return view->end == Phase::kStopped || view->stop_reason != kSuspendReason;
}

std::optional<EndForGood> ended_for_good(const api::TrainingJob& job,
                                         const coordinator::View* view) {
  const auto& record = job.status.membership;
  const bool is_over = view != nullptr ? view->phase == Phase::kFailed
                                       : record && record->phase == name_of(Phase::kFailed);
  if (!is_over) return std::nullopt;
  if (view != nullptr && !view->failure_reason.empty())
    return EndForGood{view->failure_reason, view->failure_message};
  return EndForGood{
      .failure_reason = "RecoveryFailed",
      .failure_message =
          "its workers were ended for good under an earlier leader, whose log says why"};
}

Decision decide_intent(const IntentFacts& facts) {
  const api::TrainingJob& job = *facts.job;
  const coordinator::View* view = facts.view;
  if (!facts.failure.empty()) return {Intent::kOver, facts.failure, "", ""};
  if (job.meta.is_deleting()) return stop("the job is being deleted");
  if (job.spec.suspend) return stop(std::string(kSuspendReason));
  if (view != nullptr && view->parked_since &&
      facts.now - *view->parked_since > std::chrono::seconds(job.spec.park_seconds)) {
    Decision requeue = stop(fmt::format("below its minimum for {} s", job.spec.park_seconds));
    requeue.queued_reason = api::reason::kRequeued;
    requeue.queued_message = requeue.stop_reason + "; waits for GPUs again";
    return requeue;
  }
  if (finishes_a_stop(job, view)) {
    Decision on = stop(view->stop_reason.empty() ? "it was stopped" : view->stop_reason);
    on.queued_reason = api::reason::kRequeued;
    on.queued_message = on.stop_reason + "; waits for GPUs again";
    return on;
  }
  if (job.status.allocation && job.status.allocation->pods.empty() && facts.pods_left) {
    const std::string& why = job.status.allocation->reason;  // preempted, or given back
    Decision given_back = stop(why);
    const bool preempted = job.status.allocation->preempted.value_or(false);
    given_back.queued_reason =
        preempted ? api::reason::kPreempted : api::reason::kWaitingForRelease;
    given_back.queued_message = preempted ? why : "its old pods have not ended yet (" + why + ")";
    return given_back;
  }
  return {};
}

}  // namespace rubato::control
