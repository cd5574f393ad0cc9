// Where a reconcile makes, binds and removes pods.
#include "common/planted.h"
#include "kube/errors.h"
#include "operator/api/resources.h"
#include "operator/control/job_pass.h"
#include "operator/control/job_secret.h"
#include "operator/control/worker_pod.h"

#include <algorithm>

#include <fmt/core.h>

namespace rubato::control {

using json::Value;

namespace {
// Pod Security, a quota, a policy: the job's owner can have it lifted.
bool is_forbidden_now(const Error& error) {
  return kube::is_forbidden(error) || error.code() == Code::kInvalid;
}

// Or something that the API server asks (a webhook) is broken. Each has words for people.
bool is_refused_now(const Error& error) {
  return is_forbidden_now(error) || error.code() == Code::kInternal;
}

std::string refusal_of(const std::string& what, const Error& error) {
  return fmt::format("{} is refused: {}", what, error.what());
}
}  // namespace

// Before the job is scheduled, a pod of it, and the Secret that it mounts, are made for a trial:
// what the API server refuses for good fails the job, and what it refuses now (a quota, Pod
// Security, no such PriorityClass, a webhook that is away) the job waits for, without GPUs. One
// that holds GPUs goes on with the priority class that it has.
Status JobPass::check_template() {
  if (job_.meta.is_deleting() || !job_.unreadable.empty() || !is_trial_due()) return ok();
  const auto asked = priority_of_spec();
  const std::string trial =
      fmt::format("a trial of generation {}, priority {}", job_.meta.generation,
                  asked ? std::to_string(asked->value) : "unknown");
  if (const auto refused = refused_lately(trial)) {
    note_untried(*refused);
    return ok();
  }
  const auto made = d_.client.create(kube::types::kPod, job_.meta.ns, sample_pod(job_, d_.config),
                                     {.dry_run = true});
  Status tried = ok();
  if (!made.ok() && made.error().code() != Code::kAlreadyExists) {
    if (is_refused_for_good(made.error())) {
      refuse_template(made.error());
      return ok();
    }
    tried = made.error();
  } else {
    if (made.ok())
      if (auto admitted = kube::Pod::decode(*made); admitted.ok())
        d_.memory.note_admitted(job_.meta.uid, std::move(admitted).value());
    if (!job_.status.credentials) tried = try_job_secret(d_.client, job_, *d_.trust.root());
  }
  if (tried.ok()) {
    d_.memory.forget_refusals(job_.meta.uid);
    const auto priority = priority_of_spec();
    is_tried_ = priority.has_value();
    if (priority) priority_ = priority;
    if (!priority) again_ = std::min<Duration>(again_, kWhileBehind);  // its class was just made
    return ok();
  }
  note_untried(tried.error());
  const Status told = tell_refused(holds_gpus() ? "a pod with the priority class of its spec (it "
                                                  "goes on with the one before)"
                                                : "a pod of spec.template",
                                   tried.error());
  pause_after(trial, tried.error());
  return told;
}

// Of a job that holds GPUs a pod could be made before: all else of its spec is in force.
void JobPass::note_untried(const Error& error) {
  if (holds_gpus()) return;
  is_tried_ = false;
  if (is_refused_now(error)) forbidden_ = error.what();
}

std::optional<api::JobPriority> JobPass::priority_of_spec() const {
  return priority_of(job_.spec.priority_class_name, d_.caches.priorities.store().list());
}

// Once, and as long as none may be made. Then again when the priority is another one: no more of
// what enters a pod may be changed. A job that holds GPUs keeps the priority of its class, as pods
// do: the class may be deleted, and made again with another value.
bool JobPass::is_trial_due() {
  if (!job_.status.observed_generation || is_pod_forbidden(job_)) return true;
  const auto priority = priority_of_spec();
  if (!priority_) priority_ = priority;  // of an earlier build, which kept none
  if (priority == priority_) return false;
  if (!holds_gpus() || priority_->class_name != job_.spec.priority_class_name) return true;
  const std::string why =
      priority ? fmt::format("its value is {} now", priority->value) : "it was deleted";
  if (d_.memory.say_once(job_.meta.uid, "priority kept: " + why))
    emit({kube::EventLevel::kWarning, "PriorityKept", "Scheduling",
          fmt::format("{} is not what it was ({}): the job keeps priority {} until it gives its "
                      "GPUs back",
                      priority_->class_name.empty() ? "the cluster's default PriorityClass"
                                                    : "PriorityClass " + priority_->class_name,
                      why, priority_->value)});
  return false;
}

// Of a job that has had pods the template was good: it is the cluster that refuses them now.
bool JobPass::is_refused_for_good(const Error& error) const {
  const auto& membership = job_.status.membership;
  const bool has_had_pods = membership && membership->generation > 0;
  return error.code() == Code::kInvalid && !kube::is_denied_by_admission(error) && !has_had_pods;
}

// What was refused so short a time ago that it is not asked again yet: why. The reconcile comes
// back then. Its own writes, and those of a job that trains, bring it back much sooner.
std::optional<Error> JobPass::refused_lately(const std::string& request) {
  const auto refusal = d_.memory.refusal(job_.meta.uid, request, now());
  if (!refusal) return std::nullopt;
  again_ = std::min(again_, refusal->until - now());
  return refusal->error;
}

void JobPass::pause_after(const std::string& request, const Error& error) {
  d_.memory.note_refused(job_.meta.uid, request, error,
                         is_forbidden_now(error) ? Duration(kRefusalPause) : Duration(kErrorPause),
                         now());
  (void)refused_lately(request);  // comes back then
}

// Each kind of cause at its own pauses: what is new is told at once. Words may differ each time.
void JobPass::warn_at_times(const char* reason, const char* action, const std::string& note,
                            const Error& cause) {
  const std::string subject = std::string(reason) + " " + name_of(cause.code());
  if (d_.memory.may_tell(job_.meta.uid, subject, now()))
    emit({kube::EventLevel::kWarning, reason, action, note});
}

// What the API server says is told. What is not allowed is no error of the reconcile: all else is.
Status JobPass::tell_refused(const std::string& what, const Error& error) {
  if (is_refused_now(error))
    warn_at_times("FailedCreate", "Creating", refusal_of(what, error), error);
  if (is_forbidden_now(error)) return ok();
  return error.in(what);
}

Status JobPass::note_refusal(const std::string& what, const Error& error) {
  const Status told = tell_refused(what, error);
  if (is_refused_now(error)) {
    pause_after(what, error);
    start_waits_.insert(refusal_of(what, error));
  }
  return told;
}

// `what`, which an allocated pod needs, is not asked again yet.
bool JobPass::waits_after_refusal(const std::string& what) {
  const auto refused = refused_lately(what);
  if (refused) start_waits_.insert(refusal_of(what, *refused));
  return refused.has_value();
}

void JobPass::refuse_template(const Error& error) {
  failed_reason_ = std::string(api::reason::kInvalidTemplate);
  failed_message_ = "the pod made from spec.template is refused: " + error.what();
}

Status JobPass::ensure_pods() {
  if (!job_.status.allocation || job_.status.allocation->pods.empty()) return ok();
  const std::string secret = "Secret " + job_secret_name(job_);
  Status made = ok();
  if (const auto refused = refused_lately(secret)) {
    forbid_pods(secret, *refused);
  } else if (const Status ready = ensure_credentials(); !ready.ok()) {
    forbid_pods(secret, ready.error());
    made = note_refusal(secret, ready.error());
  }
  for (const auto& allocated : job_.status.allocation->pods) {
    const kube::Pod* pod = find(allocated.name);
    const bool is_there = pod != nullptr && (!pod->node_name.empty() || pod->meta.deleting);
    if (made.ok() && makes_pods_ && !is_there && !is_to_leave(allocated, pod))
      made = place(allocated, pod);
  }
  const Status gang = check_gang();
  return made.ok() ? gang : made;
}

// The others wait for the next reconcile.
void JobPass::forbid_pods(const std::string& what, const Error& error) {
  makes_pods_ = false;
  is_pod_forbidden_ = is_forbidden_now(error);
  if (!is_refused_now(error)) return;
  pod_refusal_ = refusal_of(what, error);
  start_waits_.insert(pod_refusal_);
}

// It was lost, or given up because it was not made: a round may have given its GPUs to others
// already. If it comes after all it is not bound, and goes when it has left the allocation.
bool JobPass::is_to_leave(const api::AllocatedPod& allocated, const kube::Pod* pod) const {
  const auto lost = d_.memory.lost_pods(job_.meta.uid);
  return lost.contains(pod == nullptr ? lost_name(allocated) : pod->meta.uid) ||
         given_up_.contains(start_key(job_.meta.ns, allocated, nullptr));
}

// Before the first pod is made it is there. Somebody may delete it later: it is looked for when
// pods are made or wait to be started, at times only, for to look is to sign a certificate. Pods
// that run go on with what they have when it cannot be renewed now, and it is tried again.
Status JobPass::ensure_credentials() {
  bool makes = false, waits = false;
  for (const auto& allocated : job_.status.allocation->pods) {
    const kube::Pod* pod = find(allocated.name);
    makes = makes || (pod == nullptr && !is_to_leave(allocated, pod));
    waits = waits || (pod != nullptr && pod->phase == kube::PodPhase::kPending);
  }
  if (waits) again_ = std::min<Duration>(again_, kRenewalPause);
  const char* const renewal = "a new Secret";
  if (d_.memory.refusal(job_.meta.uid, renewal, now())) return ok();  // the one that is there stays
  const auto root = d_.trust.root();
  const bool is_due = are_credentials_due(job_, *root, d_.trust.timing(), wall());
  const bool makes_first = makes && !job_.status.credentials;
  const bool tries =
      (is_due || waits || makes) && d_.memory.may_renew(job_.meta.uid, d_.executor.now());
  if (!makes_first && !tries) return ok();
  TRY(WrittenSecret written,
      write_job_secret(d_.client, job_, *root, d_.trust.timing(), wall(), is_due));
  if (written.credentials) credentials_ = std::move(written.credentials);
  if (!written.renewed.ok()) {
    warn_at_times("NotRenewed", "Renewing", written.renewed.error().what(),
                  written.renewed.error());
    d_.memory.note_refused(job_.meta.uid, renewal, written.renewed.error(), kRefusalPause, now());
  }
  return ok();
}

// After an allocation that we know to be the newest: the cache shows the job as it was when we took
// its membership over, or later, and from then on what an earlier leader still writes is refused.
Status JobPass::place(const api::AllocatedPod& allocated, const kube::Pod* pod) {
  const auto& membership = job_.status.membership;
  if (membership && membership->leader != leader_ && !planted(Bug::kOldAllocation)) {
    again_ = std::min<Duration>(again_, kWhileBehind);
    return ok();
  }
  const PlacementGate::Placing placing(d_.gate, job_.meta.uid, job_.status.allocation->epoch);
  if (!placing) {
    again_ = std::min<Duration>(again_, kWhileBehind);
    return ok();
  }
  if (is_to_leave(allocated, pod)) return ok();  // since the gate let the job in
  if (pod != nullptr) return bind_pod(*pod, allocated.node);
  return d_.gate.was_made(job_.meta.uid, allocated.name) ? adopt_pod(allocated)
                                                         : create_pod(allocated);
}

Status JobPass::create_pod(const api::AllocatedPod& allocated) {
  const std::string what = "pod " + allocated.name;
  if (const auto refused = refused_lately(what)) {
    forbid_pods(what, *refused);
    return ok();
  }
  const MonoTime asked = now();
  auto created =
      d_.client.create(kube::types::kPod, job_.meta.ns, worker_pod(job_, allocated, d_.config));
  if (!created.ok()) {
    const Error& error = created.error();
    if (error.code() == Code::kAlreadyExists) return adopt_pod(allocated);
    if (is_refused_for_good(error)) {
      refuse_template(error);
      intent_ = Intent::kOver;
      return ok();
    }
    forbid_pods(what, error);
    return note_refusal(what, error);
  }
  TRY(const kube::Pod pod, kube::Pod::decode(*created));
  d_.gate.note_made(job_.meta.uid, allocated.name);
  d_.memory.note_made(job_.meta.uid, allocated.name, asked);
  return bind_pod(pod, allocated.node);
}

// The name is taken: by an earlier try of ours whose answer was lost, by the last leader, or by
// somebody else; or a pod of ours had it. The cache may not show it yet, so the pod itself is
// asked.
Status JobPass::adopt_pod(const api::AllocatedPod& allocated) {
  const auto live = live_pod(d_.client, {job_.meta.ns, allocated.name});
  if (!live.ok()) return live.error().in("reading pod " + allocated.name);
  again_ = std::min<Duration>(again_, kWhileBehind);
  if (!live->has_value()) {  // gone again
    if (d_.gate.was_made(job_.meta.uid, allocated.name)) {
      d_.memory.note_lost(job_.meta.uid, lost_name(allocated));
      d_.wake_scheduler();
    }
    return ok();
  }
  TRY(const kube::Pod pod, kube::Pod::decode(**live));
  if (!pod.meta.owner || pod.meta.owner->uid != job_.meta.uid) {
    if (d_.memory.say_once(job_.meta.uid, allocated.name))
      emit({kube::EventLevel::kWarning, "PodNameTaken", "Starting",
            fmt::format("pod {} exists and belongs to another; delete it, or rename the job",
                        allocated.name)});
    return ok();
  }
  return pod.node_name.empty() && !pod.meta.deleting ? bind_pod(pod, allocated.node) : ok();
}

Status JobPass::bind_pod(const kube::Pod& pod, const std::string& node) {
  bool ready = false;
  TRY_OK(ready_claims(pod, node, ready));
  if (!ready) return ok();
  const std::string what = "the binding of pod " + pod.meta.name + " to node " + node;
  if (waits_after_refusal(what)) return ok();
  const Value binding = Value::object(
      {{"apiVersion", "v1"},
       {"kind", "Binding"},
       {"metadata",
        Value::object(
            {{"name", pod.meta.name}, {"namespace", pod.meta.ns}, {"uid", pod.meta.uid}})},
       {"target", Value::object({{"apiVersion", "v1"}, {"kind", "Node"}, {"name", node}})}});
  d_.gate.binds(pod, node, d_.executor.now());
  const auto bound =
      d_.client.create(kube::types::kPod, pod.meta.ns, binding, {.subresource = "binding"});
  if (bound.ok()) return ok();
  if (bound.error().code() == Code::kConflict) {  // bound already, as the cache will show soon
    again_ = std::min<Duration>(again_, kWhileBehind);
    return ok();
  }
  if (!kube::may_have_happened(bound.error())) d_.gate.not_bound(pod.meta.uid);
  return note_refusal(what, bound.error());
}

// Pods that are no longer in the allocation go once their workers have left, or at once when they
// never trained. One that may not be deleted keeps no other one, nor the status.
Status JobPass::remove_left_pods() {
  Status all = ok();
  std::set<std::string> retired_pods;
  if (view_) retired_pods.insert(view_->retired_pods.begin(), view_->retired_pods.end());
  for (const auto& pod : pods_) {
    if (pod->meta.deleting || pod->is_finished()) continue;
    if (intent_ == Intent::kTrain && is_allocated(pod->meta.name) && !was_lost(*pod)) continue;
    const bool retired = retired_pods.contains(pod->meta.name);
    const bool trains = is_member(pod->meta.uid) && !was_lost(*pod);
    if (trains && !retired && !(intent_ != Intent::kTrain && stop_is_over())) continue;
    const Status removed = remove_pod(*pod);
    if (all.ok()) all = removed;
  }
  return all;
}

// Deletion is graceful, never forced: only the kubelet says when GPUs are free.
Status JobPass::remove_pod(const kube::Pod& pod) {
  const std::string what = "the deletion of pod " + pod.meta.name;
  if (refused_lately(what)) return ok();
  const Status removed = d_.client.remove(kube::types::kPod, pod.meta.key(), {.uid = pod.meta.uid});
  if (removed.ok()) return ok();
  const Error& error = removed.error();
  if (error.code() == Code::kNotFound || error.code() == Code::kConflict) {  // it is gone
    again_ = std::min<Duration>(again_, kWhileBehind);
    return ok();
  }
  if (is_refused_now(error)) {
    warn_at_times("FailedDelete", "Deleting",
                  fmt::format("pod {} may not be deleted: {}", pod.meta.name, error.what()), error);
    pause_after(what, error);
  }
  return is_forbidden_now(error) ? ok() : error.in("deleting pod " + pod.meta.name);
}

}  // namespace rubato::control
