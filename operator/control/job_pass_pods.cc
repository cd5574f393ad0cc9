// Where a reconcile makes, binds and removes pods.
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
constexpr auto kWhileForbidden = std::chrono::seconds(10);  // how soon it is tried again
}  // namespace

// Before the job is scheduled for the first time (its observedGeneration says so), a pod of it is
// made for a trial: what the API server refuses for good fails the job, and what it forbids now (a
// quota, Pod Security, no such PriorityClass) the job waits for, without GPUs.
Status JobPass::check_template() {
  const bool is_to_try = !job_.status.observed_generation && !job_.meta.is_deleting();
  if (!is_to_try || !job_.unreadable.empty()) return ok();
  const auto made = d_.client.create(kube::types::kPod, job_.meta.ns, sample_pod(job_, d_.config),
                                     {.dry_run = true});
  if (made.ok() || made.error().code() == Code::kAlreadyExists) return ok();
  const bool may_be_lifted =
      kube::is_forbidden(made.error()) || kube::is_denied_by_admission(made.error());
  if (!may_be_lifted && made.error().code() == Code::kInvalid) {
    refuse_template(made.error());
    return ok();
  }
  if (!may_be_lifted) return made.error().in("trying a pod of spec.template");
  forbidden_ = made.error().what();
  emit({kube::EventLevel::kWarning, "FailedCreate", "Creating",
        fmt::format("no pod can be made: {}", forbidden_)});
  again_ = std::min<Duration>(again_, kWhileForbidden);
  return ok();
}

void JobPass::refuse_template(const Error& error) {
  failed_reason_ = std::string(api::reason::kInvalidTemplate);
  failed_message_ = "the pod made from spec.template is refused: " + error.what();
}

Status JobPass::ensure_pods() {
  if (!job_.status.allocation || job_.status.allocation->pods.empty()) return ok();
  TRY_OK(ensure_credentials());
  Status made = ok();
  for (const auto& allocated : job_.status.allocation->pods) {
    const kube::Pod* pod = find(allocated.name);
    const bool is_there = pod != nullptr && (!pod->node_name.empty() || pod->meta.deleting);
    const bool is_lost = pod == nullptr && lost_.contains(lost_name(allocated));
    if (made.ok() && !is_pod_forbidden_ && !is_there && !is_lost) made = place(allocated, pod);
  }
  TRY_OK(check_gang());
  return made;
}

// Before the first pod is made it is there. Somebody may delete it later: it is looked for when
// pods are made or wait to be started, at times only, for to look is to sign a certificate. Pods
// that run go on with what they have when it cannot be renewed now, and it is tried again.
Status JobPass::ensure_credentials() {
  bool makes = false, waits = false;
  for (const auto& allocated : job_.status.allocation->pods) {
    const kube::Pod* pod = find(allocated.name);
    makes = makes || (pod == nullptr && !lost_.contains(lost_name(allocated)));
    waits = waits || (pod != nullptr && pod->phase == kube::PodPhase::kPending);
  }
  if (waits) again_ = std::min<Duration>(again_, kRenewalPause);
  const auto root = d_.trust.root();
  const bool is_due = are_credentials_due(job_, *root, d_.trust.timing(), wall());
  const bool makes_first = makes && !job_.status.credentials;
  const bool tries =
      (is_due || waits || makes) && d_.memory.may_renew(job_.meta.uid, d_.executor.now());
  if (!makes_first && !tries) return ok();
  TRY(WrittenSecret written,
      write_job_secret(d_.client, job_, *root, d_.trust.timing(), wall(), is_due));
  if (written.credentials) credentials_ = std::move(written.credentials);
  if (!written.renewed.ok())
    emit({kube::EventLevel::kWarning, "NotRenewed", "Renewing", written.renewed.error().what()});
  return ok();
}

// After an allocation that we know to be the newest: the cache shows the job as it was when we took
// its membership over, or later, and from then on what an earlier leader still writes is refused.
Status JobPass::place(const api::AllocatedPod& allocated, const kube::Pod* pod) {
  const auto& membership = job_.status.membership;
  if (membership && membership->leader != leader_) {
    again_ = std::min<Duration>(again_, kWhileBehind);
    return ok();
  }
  const PlacementGate::Placing placing(d_.gate, job_.meta.uid, job_.status.allocation->epoch);
  if (!placing) {
    again_ = std::min<Duration>(again_, kWhileBehind);
    return ok();
  }
  if (pod != nullptr) return bind_pod(*pod, allocated.node);
  return d_.gate.was_made(job_.meta.uid, allocated.name) ? adopt_pod(allocated)
                                                         : create_pod(allocated);
}

Status JobPass::create_pod(const api::AllocatedPod& allocated) {
  auto created =
      d_.client.create(kube::types::kPod, job_.meta.ns, worker_pod(job_, allocated, d_.config));
  if (!created.ok()) {
    const Error& error = created.error();
    if (error.code() == Code::kAlreadyExists) return adopt_pod(allocated);
    // Of a job that has had pods the template was good: it is the cluster that refuses them now.
    const auto& membership = job_.status.membership;
    const bool is_refused_now =
        kube::is_denied_by_admission(error) || (membership && membership->generation > 0);
    if (error.code() == Code::kInvalid && !is_refused_now) {
      refuse_template(error);
      intent_ = Intent::kOver;
      return ok();
    }
    // Pod Security, a quota, a policy: the job's owner can have it lifted.
    if (kube::is_forbidden(error) || error.code() == Code::kInvalid) {
      emit({kube::EventLevel::kWarning, "FailedCreate", "Creating",
            fmt::format("pod {} is refused: {}", allocated.name, error.what())});
      // Tried again at a steady pace: pauses that double would miss the end of the gang's patience.
      is_pod_forbidden_ = true;
      again_ = std::min<Duration>(again_, kWhileForbidden);
      return ok();
    }
    return error.in("creating pod " + allocated.name);
  }
  TRY(const kube::Pod pod, kube::Pod::decode(*created));
  d_.gate.note_made(job_.meta.uid, allocated.name);
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
  return bound.error().in("binding pod " + pod.meta.name + " to node " + node);
}

// Pods that are no longer in the allocation go once their workers have left, or at once when they
// never trained. Deletion is graceful, never forced: only the kubelet says when GPUs are free.
Status JobPass::remove_left_pods() {
  std::set<std::string> retired_pods;
  if (view_) retired_pods.insert(view_->retired_pods.begin(), view_->retired_pods.end());
  for (const auto& pod : pods_) {
    if (pod->meta.deleting || pod->is_finished()) continue;
    if (intent_ == Intent::kTrain && is_allocated(pod->meta.name) && !was_lost(*pod)) continue;
    const bool retired = retired_pods.contains(pod->meta.name);
    const bool trains = is_member(pod->meta.uid) && !was_lost(*pod);
    if (trains && !retired && !(intent_ != Intent::kTrain && stop_is_over())) continue;
    const Status removed =
        d_.client.remove(kube::types::kPod, pod->meta.key(), {.uid = pod->meta.uid});
    if (!removed.ok()) again_ = std::min<Duration>(again_, kWhileBehind);
    if (!removed.ok() && removed.error().code() != Code::kNotFound &&
        removed.error().code() != Code::kConflict) {
      return removed.error().in("deleting pod " + pod->meta.name);
    }
  }
  return ok();
}

}  // namespace rubato::control
