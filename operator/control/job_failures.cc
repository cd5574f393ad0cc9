// What counts as a failure, and when it is for good; pods that do not start.
#include "operator/control/job_pass.h"
#include "operator/control/worker_pod.h"

#include <algorithm>

#include <fmt/format.h>

namespace rubato::control {

namespace {

// The table of reasons that no job can help: of the pod's status, and exit codes of a SIGTERM or
// SIGKILL that came from outside.
bool is_infrastructure(const kube::Pod& pod) {
  for (const std::string_view reason :
       {"Evicted", "NodeLost", "NodeRebooted", "NodeShutdown", "NodeAffinity", "Preempting",
        "Shutdown", "Terminated", "UnexpectedAdmissionError"}) {
    if (pod.reason == reason) return true;
  }
  if (pod.reason.starts_with("OutOf")) return true;
  return std::any_of(pod.containers.begin(), pod.containers.end(), [](const auto& container) {
    return container.exit_code == 128 + 15 || container.exit_code == 128 + 9;
  });
}

// In this time an agent that runs has found a new leader.
constexpr Duration kHearing = 10s;

}  // namespace

// Failures that are charged to maxRestarts: workers that crashed, and pods that failed of
// themselves (ended pods are kept, so they can be counted). What the infrastructure did is not
// charged.
std::uint64_t JobPass::own_failures() const {
  std::uint64_t count = view_ ? view_->failure_count : 0;
  for (const auto& pod : pods_) {
    if (pod->phase == kube::PodPhase::kFailed && !is_infrastructure(*pod)) ++count;
  }
  return count;
}

// A generation that does not come together gives its GPUs back. Of a job that has trained, how old
// the allocation is says nothing: it waits for its workers when an operator is new. One that never
// had a generation has nobody to wait for but agents that have not found this leader yet, so its
// time does not begin anew with each leader.
Status JobPass::check_gang() {
  if (!view_ || !view_->waiting_since || !job_.status.allocation->since) return ok();
  const Duration patience = d_.policy.get()->gang_start;
  const bool trained = job_.status.membership && job_.status.membership->generation > 0;
  const Duration hearing = trained ? patience : std::min(patience, kHearing);
  const Duration left = std::max<Duration>(*job_.status.allocation->since + patience - wall(),
                                           *view_->waiting_since + hearing - d_.executor.now());
  if (left > 0s) {
    again_ = std::min(again_, left);
    return ok();
  }
  const std::string cause = start_problems();
  queued_reason_ = std::string(api::reason::kGangTimeout);
  queued_message_ =
      "its pods did not all start in time: " + (cause.empty() ? view_->reason : cause);
  d_.memory.hold_back(job_.meta.uid, {.until = wall() + d_.config.requeue_delay,
                                      .reason = queued_reason_,
                                      .why = queued_message_});
  return release(queued_message_);
}

// A pod that its node does not start while others train, or whose agent is not heard of when it
// runs, gives its GPUs up in the same time: the scheduler takes it out of the allocation, and it is
// removed like any that has left it. If it comes after all before that, it stays; if it joins
// before it is removed, it leaves by a planned change.
void JobPass::give_up_unstarted() {
  if (!view_ || view_->waiting_since) return;  // the gang's time: check_gang
  const Duration patience = d_.policy.get()->gang_start;
  const auto is_heard = [&](const kube::Pod& pod) {
    const auto& heard = view_->heard_pods;
    return std::find(heard.begin(), heard.end(), pod.meta.name) != heard.end();
  };
  d_.memory.forget_unstarted(job_.meta.uid, [&](const std::string& key) {
    return std::any_of(pods_.begin(), pods_.end(),
                       [&](const auto& pod) { return start_key(*pod) == key && !is_heard(*pod); });
  });
  for (const auto& pod : pods_) {
    const std::string key = start_key(*pod);
    if (key.empty() || pod->node_name.empty() || pod->meta.deleting || is_heard(*pod)) continue;
    if (!is_allocated(pod->meta.name) || is_member(pod->meta.uid) || was_lost(*pod)) continue;
    const Duration left =
        d_.memory.waits_since(job_.meta.uid, key, d_.executor.now()) + patience - d_.executor.now();
    if (left > 0s) {
      again_ = std::min(again_, left);
      continue;
    }
    const WallTime until = d_.memory.give_up(job_.meta.uid, key, pod->node_name, wall(), patience);
    d_.wake_scheduler();
    if (d_.memory.say_once(job_.meta.uid, key + " given up")) tell_given_up(*pod, patience, until);
  }
}

void JobPass::tell_given_up(const kube::Pod& pod, Duration patience, WallTime until) {
  const bool runs = pod.phase == kube::PodPhase::kRunning;
  const std::string problem = start_problem(pod);
  std::string why = problem.empty() ? "" : " (" + problem + ")";
  if (runs) why = " (it runs, and its agent does not reach the operator)";
  emit(
      kube::EventLevel::kWarning, "PodGivenUp", "Starting",
      fmt::format("pod {} on node {} {} within {:g} s{}: its GPUs are given back, and the job gets "
                  "no other on this node before {}",
                  pod.meta.name, pod.node_name, runs ? "did not report" : "did not start",
                  std::chrono::duration<double>(patience).count(), why, to_rfc3339(until)));
}

std::string JobPass::start_problems() const {
  std::vector<std::string> problems;
  for (const auto& pod : pods_) {
    const std::string why = start_problem(*pod);
    if (why.empty() || !is_allocated(pod->meta.name) || pod->meta.deleting) continue;
    problems.push_back(
        fmt::format("pod {} on node {} cannot start: {}", pod->meta.name, pod->node_name, why));
  }
  return fmt::format("{}", fmt::join(problems, "; "));
}

std::string JobPass::failure() {
  const auto fail = [&](std::string_view reason, std::string message) {
    failed_reason_ = std::string(reason);
    failed_message_ = std::move(message);
    return failed_reason_;
  };
  if (job_.meta.is_deleting()) return "";
  if (job_.spec.runtime != api::Runtime::kBuiltin || !job_.spec.training) {
    return fail(api::reason::kUnsupported, "spec.runtime \"" +
                                               std::string(api::name_of(job_.spec.runtime)) +
                                               "\" is not run yet; use builtin with spec.training");
  }
  if (view_ && view_->phase == coordinator::Phase::kFailed) {
    return fail(view_->failure_reason, view_->failure_message);
  }
  if (view_ &&
      view_->failure_count > static_cast<std::uint64_t>(job_.spec.fault_tolerance.max_restarts)) {
    const std::string last = view_->failures.empty() ? "" : ": " + view_->failures.back().message;
    return fail(api::reason::kMaxRestarts,
                fmt::format("{} failures of its own, more than faultTolerance.maxRestarts = {}{}",
                            own_failures(), job_.spec.fault_tolerance.max_restarts, last));
  }
  if (job_.spec.active_deadline_seconds && job_.status.start_time && !job_.spec.suspend &&
      wall() - *job_.status.start_time > std::chrono::seconds(*job_.spec.active_deadline_seconds)) {
    return fail(api::reason::kDeadlineExceeded,
                fmt::format("ran longer than activeDeadlineSeconds = {}",
                            *job_.spec.active_deadline_seconds));
  }
  return "";
}

}  // namespace rubato::control
