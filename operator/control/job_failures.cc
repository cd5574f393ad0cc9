// What counts as a failure, and when it is for good; pods that do not start.
#include "common/some_of.h"
#include "common/words.h"
#include "operator/control/job_pass.h"
#include "operator/control/pod_failures.h"
#include "operator/control/worker_pod.h"

#include <algorithm>
#include <set>
#include <string_view>

#include <fmt/format.h>

namespace rubato::control {

namespace {

// In this time a pod is made, and the agent of one that runs has found a new leader.
constexpr Duration kHearing = 10s;
constexpr Duration kStartsAgain = 10s;    // until who still starts is looked at again
constexpr std::size_t kProblemsTold = 8;  // of a job's pods, in one sentence

// It may be there, or its agent heard of, in a moment: nothing else is missing.
bool may_come_at_once(const kube::Pod* pod) {
  return pod == nullptr || pod->phase == kube::PodPhase::kRunning;
}

std::string why_unstarted(const kube::Pod* pod) {
  if (pod == nullptr) return "is not there";
  if (pod->phase == kube::PodPhase::kRunning)
    return "runs, and its agent does not reach the operator";
  const std::string problem = start_problem(*pod);
  return problem.empty() ? "did not start" : "did not start (" + problem + ")";
}

}  // namespace

// Failures that are charged to maxRestarts: of workers, of pods that have left the allocation, both
// of the job's life and on record, and of pods that are about to leave it.
std::uint64_t JobPass::own_failures() const {
  std::int64_t count = 0;
  if (const auto& membership = job_.status.membership) count = membership->failures.value_or(0);
  if (view_) count = std::max(count, static_cast<std::int64_t>(view_->failure_count));
  if (job_.status.allocation) count += job_.status.allocation->failed_pods.value_or(0);
  for (const auto& [name, allocated] : allocated_) {
    const kube::Pod* pod = find(name);
    if (pod != nullptr && failed_of_itself(*pod)) ++count;
  }
  // A pod that somebody deletes before it has left is seen as lost from then on.
  if (job_.status.restarts) count = std::max<std::int64_t>(count, job_.status.restarts->count);
  return static_cast<std::uint64_t>(count);
}

// Of the time to come that a pod (null: to be made) has. It is counted from the decision on it or,
// where it was made again, from that: both are durable, so that it does not begin anew with each
// leader. Nor does it last longer than from when this leader saw the pod wait, whatever clocks say.
Duration JobPass::time_to_come(const api::AllocatedPod& allocated, const kube::Pod* pod) const {
  const Duration patience = d_.policy.get()->gang_start;
  WallTime from = *job_.status.allocation->since;
  if (pod != nullptr) from = std::max(from, pod->meta.created);
  const Duration left = from + patience - wall();
  const std::string key = start_key(job_.meta.ns, allocated, pod);
  if (key.empty()) return left;  // it has ended, and is about to leave the allocation
  return std::min<Duration>(left,
                            d_.memory.waits_since(job_.meta.uid, key, now()) + patience - now());
}

// What may be a matter of a moment is waited for as long as that from when this leader saw it so.
Duration JobPass::time_to_hear(MonoTime first_seen) const {
  return first_seen + std::min(d_.policy.get()->gang_start, kHearing) - d_.executor.now();
}

// Who came while this process slept is heard of in a moment.
Duration JobPass::time_after_sleep() const { return time_to_hear(d_.coordinator.awake_since()); }

// A generation that does not come together gives its GPUs back. Of pods that have trained, their
// age says nothing: they are waited for when an operator is new.
Status JobPass::check_gang() {
  if (!view_ || !view_->waiting_since || !job_.status.allocation->since) return ok();
  Duration left = time_after_sleep();
  const std::set<std::string_view> heard(view_->heard_pods.begin(), view_->heard_pods.end());
  std::int64_t gpus_soon = 0;
  std::int64_t gpus_heard = 0;
  for (const auto& [name, allocated] : allocated_) {
    const kube::Pod* pod = find(name);
    left = std::max(left, time_to_come(*allocated, pod));
    if (heard.contains(name)) gpus_heard += allocated->gpus;
    if (may_come_at_once(pod)) gpus_soon += allocated->gpus;
    if (pod != nullptr && is_member(pod->meta.uid))
      left = std::max<Duration>(
          left, *view_->waiting_since + d_.policy.get()->gang_start - d_.executor.now());
  }
  if (gpus_soon >= job_.spec.gpus.min) left = std::max(left, time_to_hear(*view_->waiting_since));
  // Enough have come. How long a process may take to get ready is the coordinator's to say.
  if (gpus_heard >= job_.spec.gpus.min && view_->is_starting)
    left = std::max<Duration>(left, kStartsAgain);
  if (left > 0s) {
    again_ = std::min(again_, left);
    return ok();
  }
  const std::string cause = start_problems();
  queued_reason_ = std::string(api::reason::kGangTimeout);
  queued_message_ =
      "its pods did not all start in time: " + (cause.empty() ? view_->reason : cause);
  avoid_nodes_of_late_pods();
  d_.memory.note_failed_start(job_.meta.uid, {job_.meta.generation, job_.status.allocation->epoch},
                              d_.policy.get()->gang_start, now());
  d_.memory.hold_back(
      job_.meta.uid,
      {.until = now() + d_.config.requeue_delay, .reason = queued_reason_, .why = queued_message_});
  return release(queued_message_);
}

// Where none of its pods came it may be for their image, which no node has: none is blamed.
void JobPass::avoid_nodes_of_late_pods() {
  const auto came = [&](const std::string& pod) { return is_allocated(pod); };
  if (std::ranges::none_of(view_->heard_pods, came)) return;
  for (const auto& [key, allocated] : unstarted()) {
    const kube::Pod* pod = find(allocated->name);
    if (pod == nullptr || pod->node_name.empty()) continue;
    avoid_for_late_pod(key, *allocated, *pod);
  }
}

// A pod that is of no use gives its GPUs up: its node is avoided, the scheduler takes it out of the
// allocation once that is written, and it is removed like any that has left it. Of one that is not
// made no node is avoided.
void JobPass::give_up_useless() {
  forget_old_rows(avoided_nodes_, wall(), d_.policy.get()->gang_start);
  // A coordinator that has not looked yet does not know whether it is a gang that waits.
  if (!view_ || view_->since == MonoTime{}) return;
  std::set<std::string> refused;
  for (const coordinator::Refusal& refusal : view_->refused) {
    const auto allocated = allocated_.find(refusal.pod);
    if (allocated == allocated_.end()) continue;
    const std::string key = refusal_key(refusal.pod_uid);
    refused.insert(key);
    give_up(key, {allocated->second->node, refusal.reason, refusal.message, kRefusalWait},
            fmt::format("the worker of pod {} on node {} (image {}) cannot take part: {}: {}",
                        refusal.pod, allocated->second->node, worker_image(job_), refusal.reason,
                        refusal.message));
  }
  // Of pods that do not start in a gang that waits for them, check_gang decides; whether one does,
  // a new leader knows once it has read who trains.
  const bool is_gang = view_->waiting_since || view_->members.empty();
  const auto waiting = is_gang ? std::map<std::string, const api::AllocatedPod*>{} : unstarted();
  std::set<std::string> unmade;  // for good: a round may have taken it for lost
  for (const auto& [name, allocated] : allocated_) {
    const kube::Pod* pod = find(name);
    if (pod == nullptr || pod->node_name.empty())
      unmade.insert(start_key(job_.meta.ns, *allocated, nullptr));
  }
  d_.memory.forget_unstarted(job_.meta.uid, [&](const std::string& key) {
    return (is_gang && holds_gpus()) || waiting.contains(key) || refused.contains(key) ||
           unmade.contains(key);
  });
  give_up_unstarted(waiting);
}

// A pod that is not made, or that its node does not start, while others train, or whose agent is
// not heard of when it runs, is given up in the same time as a gang. If one that was made comes
// after all before it has left the allocation, it stays; if it joins before it is removed, it
// leaves by a planned change.
void JobPass::give_up_unstarted(const std::map<std::string, const api::AllocatedPod*>& waiting) {
  const auto& allocation = job_.status.allocation;
  if (!allocation || !allocation->since) return;
  const Duration patience = d_.policy.get()->gang_start;
  for (const auto& [key, allocated] : waiting) {
    const kube::Pod* pod = find(allocated->name);
    const bool was_made = d_.gate.was_made(job_.meta.uid, allocated->name);
    if (pod == nullptr && was_made) continue;  // the cache will show it, or adopt_pod its loss
    const MonoTime seen = d_.memory.waits_since(job_.meta.uid, key, d_.executor.now());
    // A later decision, on others, does not lengthen what this leader has seen.
    Duration left = time_to_come(*allocated, pod);
    if (may_come_at_once(pod)) left = std::max(left, time_to_hear(seen));
    left = std::max(left, time_after_sleep());
    // What the API server lets nobody make now is given back at once by a job that can go without.
    const bool is_forbidden =
        pod == nullptr && is_pod_forbidden_ && made_gpus() >= job_.spec.gpus.min;
    if (is_forbidden) {
      give_up_unmade(key, fmt::format("pod {} is not there, and may not be made", allocated->name));
      continue;
    }
    if (left > 0s) {
      again_ = std::min(again_, left);
      continue;
    }
    if (pod == nullptr) {
      give_up_unmade(key, fmt::format("pod {} {} after {:g} s", allocated->name, why_unstarted(pod),
                                      std::chrono::duration<double>(patience).count()));
      continue;
    }
    avoid_for_late_pod(key, *allocated, *pod);
    d_.memory.give_up(job_.meta.uid, key);
    d_.wake_scheduler();
  }
}

void JobPass::avoid_for_late_pod(const std::string& key, const api::AllocatedPod& allocated,
                                 const kube::Pod& pod) {
  const Duration patience = d_.policy.get()->gang_start;
  const std::string why = why_unstarted(&pod);
  avoid(key, {allocated.node, std::string(kPodGivenUp), why, patience},
        fmt::format("pod {} on node {} {} after {:g} s", allocated.name, allocated.node, why,
                    std::chrono::duration<double>(patience).count()));
}

void JobPass::give_up(const std::string& key, const UselessPod& useless, const std::string& what) {
  avoid(key, useless, what);
  d_.memory.give_up(job_.meta.uid, key);
  d_.wake_scheduler();
}

void JobPass::avoid(const std::string& key, const UselessPod& useless, const std::string& what) {
  const WallTime until = avoid_node(avoided_nodes_, useless, wall(), d_.policy.get()->gang_start);
  if (!d_.memory.say_once(job_.meta.uid, key + " given up")) return;
  emit({kube::EventLevel::kWarning,
        useless.reason == kPodGivenUp      ? "PodGivenUp"
        : useless.reason == kVolumeRefused ? "VolumeRefused"
                                           : "WorkerRefused",
        "Starting",
        fmt::format("{}: its GPUs are given back, and the job gets no other on this node before {}",
                    what, to_rfc3339(until))});
}

std::int64_t JobPass::made_gpus() const {
  std::int64_t gpus = 0;
  for (const auto& [name, allocated] : allocated_) {
    const kube::Pod* pod = find(name);
    const bool is_lost = pod == nullptr ? lost_.contains(lost_name(*allocated)) : was_lost(*pod);
    if (!is_lost && (pod != nullptr || d_.gate.was_made(job_.meta.uid, name)))
      gpus += allocated->gpus;
  }
  return gpus;
}

// That it is not there is no fault of its node: the job is not grown for a while, wherever.
void JobPass::give_up_unmade(const std::string& key, const std::string& what) {
  const GrowthLimit limit = d_.memory.limit_growth(job_.meta.uid, made_gpus(), now());
  d_.memory.give_up(job_.meta.uid, key);
  d_.wake_scheduler();
  if (!d_.memory.say_once(job_.meta.uid, key + " given up")) return;
  const std::string why = pod_refusal_.empty() ? "" : " (" + pod_refusal_ + ")";
  emit({kube::EventLevel::kWarning, "PodGivenUp", "Starting",
        fmt::format("{}{}: its GPUs are given back, and the job is not grown beyond {} before {}",
                    what, why, counted(limit.gpus, "GPU"),
                    to_rfc3339(wall_of(limit.until, now(), wall())))});
}

// It holds nothing, and each node that could take it refused for the same reason.
std::optional<CommonRefusal> JobPass::refused_by_all() const {
  const bool holds = job_.status.allocation && !job_.status.allocation->pods.empty();
  if (holds) return std::nullopt;
  auto common = common_refusal(job_.status.avoided_nodes, wall(), d_.policy.get()->gang_start);
  if (!common) return std::nullopt;
  const auto verdict = d_.memory.verdict(job_.meta.uid);
  const bool is_all = verdict && verdict->reason == sched::Reason::kEveryNodeAvoided;
  return is_all || common->is_list_full ? common : std::nullopt;
}

std::map<std::string, const api::AllocatedPod*> JobPass::unstarted() const {
  std::map<std::string, const api::AllocatedPod*> waiting;
  const std::set<std::string_view> heard(view_->heard_pods.begin(), view_->heard_pods.end());
  for (const auto& [name, allocated] : allocated_) {
    const kube::Pod* pod = find(name);
    if (heard.contains(name)) continue;
    const bool is_lost = pod == nullptr ? lost_.contains(lost_name(*allocated))
                                        : was_lost(*pod) || pod->meta.deleting.has_value();
    if (is_lost || (pod != nullptr && is_member(pod->meta.uid))) continue;
    const std::string key = start_key(job_.meta.ns, *allocated, pod);
    if (!key.empty()) waiting.emplace(key, allocated);
  }
  return waiting;
}

std::string JobPass::start_problems() const {
  std::vector<std::string> problems(start_waits_.begin(), start_waits_.end());
  for (const auto& pod : pods_) {
    const std::string why = start_problem(*pod);
    if (why.empty() || !is_allocated(pod->meta.name) || pod->meta.deleting) continue;
    problems.push_back(
        fmt::format("pod {} on node {} cannot start: {}", pod->meta.name, pod->node_name, why));
  }
  return some_of(problems, kProblemsTold, "; ");
}

// As far as it is known: that of a pod that is still allocated, else the last that an agent told,
// else that of a pod that has left.
std::string JobPass::last_failure() const {
  const kube::Pod* failed = nullptr;
  for (const auto& pod : pods_) {
    if (!failed_of_itself(*pod)) continue;
    if (is_allocated(pod->meta.name)) return describe_failure(*pod);
    if (failed == nullptr || pod->meta.created > failed->meta.created) failed = pod.get();
  }
  if (view_ && !view_->failures.empty()) return view_->failures.back().message;
  return failed == nullptr ? "" : describe_failure(*failed);
}

std::string JobPass::failure() {
  const auto fail = [&](std::string_view reason, std::string message) {
    failed_reason_ = std::string(reason);
    failed_message_ = std::move(message);
    return failed_reason_;
  };
  if (job_.meta.is_deleting()) return "";
  if (auto end = ended_for_good(job_, view_ ? &*view_ : nullptr))
    return fail(end->failure_reason, std::move(end->failure_message));
  if (!job_.unreadable.empty()) return "";
  if (!failed_reason_.empty()) return failed_reason_;  // its template
  if (const auto refusal = refused_by_all(); refusal && wall() >= refusal->fails_at) {
    return fail(refusal->reason,
                "every node that it may use refused its workers: " + refusal->text);
  }
  if (const std::uint64_t failures = own_failures();
      failures > static_cast<std::uint64_t>(job_.spec.fault_tolerance.max_restarts)) {
    const std::string last = last_failure();
    return fail(
        api::reason::kMaxRestarts,
        fmt::format("{} of its own, more than spec.faultTolerance.maxRestarts allows ({}){}",
                    counted(failures, "failure"), job_.spec.fault_tolerance.max_restarts,
                    last.empty() ? "" : "; the last: " + last));
  }
  if (job_.spec.active_deadline_seconds && job_.status.start_time && !job_.spec.suspend) {
    const Duration left =
        *job_.status.start_time + std::chrono::seconds(*job_.spec.active_deadline_seconds) - wall();
    if (left > 0s) {
      again_ = std::min<Duration>(again_, left);
      return "";
    }
    return fail(
        api::reason::kDeadlineExceeded,
        fmt::format("ran longer than spec.activeDeadlineSeconds allows ({} s since its first "
                    "step, or the first after it was resumed)",
                    *job_.spec.active_deadline_seconds));
  }
  return "";
}

}  // namespace rubato::control
