// Questions about the World that others ask, too (cluster_view.h): who is scheduled, which pods are
// lost, which claims are exclusive.
#include "operator/api/resources.h"
#include "operator/control/avoided_nodes.h"
#include "operator/control/cluster_view.h"
#include "operator/control/worker_pod.h"

#include <algorithm>

namespace rubato::control {

std::vector<kube::Key> exclusive_claims(const api::TrainingJob& job, const World& world,
                                        const Config& config) {
  if (job.spec.pod_template["spec"]["volumes"].size() == 0) return {};  // as of most
  const auto pod = kube::Pod::decode(sample_pod(job, config));
  if (!pod.ok() || pod->claims.empty()) return {};
  const VolumeNeeds needs = volume_needs(
      *pod, 1, storage_of(world.claims, world.volumes, world.storage_classes, world.claims_denied));
  std::vector<kube::Key> claims = needs.one_node;
  claims.insert(claims.end(), needs.one_pod.begin(), needs.one_pod.end());
  return claims;
}

bool is_pod_forbidden(const api::TrainingJob& job) {
  const api::Condition* queued =
      api::find_condition(job.status.conditions, api::condition::kQueued);
  return queued != nullptr && queued->status == api::ConditionStatus::kTrue &&
         queued->reason == api::reason::kPodForbidden;
}

namespace {
// As far as the job controller has said: it may be behind a spec that was just changed back.
bool is_or_gets_suspended(const api::TrainingJob& job) {
  const api::Condition* found =
      api::find_condition(job.status.conditions, api::condition::kSuspended);
  return found != nullptr && (found->status == api::ConditionStatus::kTrue ||
                              found->reason == api::reason::kSuspending);
}
}  // namespace

std::optional<api::JobPriority> priority_of(
    const std::string& class_name,
    const std::vector<std::shared_ptr<const PriorityClassObject>>& classes) {
  std::optional<api::JobPriority> found;
  for (const auto& one : classes) {
    const bool is_meant = class_name.empty() ? one->global_default : one->meta.name == class_name;
    if (is_meant && (!found || one->value < found->value))
      found = api::JobPriority{class_name, one->value, one->preempts};
  }
  if (!found && class_name.empty()) found = api::JobPriority{};
  return found;
}

bool is_schedulable(const JobObject& object) {
  const api::TrainingJob& job = object.job;
  return !job.meta.is_deleting() && job.meta.has_finalizer(api::kFinalizer) &&
         kube::find(object.meta.labels, api::kLabelInstallation) && !job.spec.suspend &&
         !api::is_finished(job.status.conditions) && !is_or_gets_suspended(job) &&
         job.status.observed_generation.has_value() && !is_pod_forbidden(job);
}

bool has_ended(const World& world, const std::string& job_uid) {
  const auto view = world.view_of ? world.view_of(job_uid) : std::nullopt;
  return view && (view->phase == coordinator::Phase::kFinished ||
                  view->phase == coordinator::Phase::kFailed);
}

bool is_lost(const api::TrainingJob& job, const api::AllocatedPod& allocated, const kube::Pod* pod,
             const World& world) {
  if (is_unstarted(job, allocated, pod, world) || is_refused(job, allocated, pod, world))
    return true;
  // Absent: not created yet, or deleted since.
  if (pod == nullptr) return world.lost_pods.contains(job.meta.ns + "/" + allocated.name);
  return pod->is_finished() || pod->meta.deleting.has_value() ||
         world.lost_pods.contains(pod->meta.uid);
}

bool is_unstarted(const api::TrainingJob& job, const api::AllocatedPod& allocated,
                  const kube::Pod* pod, const World& world) {
  const bool is_open = pod == nullptr || pod->node_name.empty();
  if (is_open && world.given_up.contains(start_key(job.meta.ns, allocated, nullptr))) return true;
  return is_listed(job.status.avoided_nodes, allocated.node) &&
         world.given_up.contains(start_key(job.meta.ns, allocated, pod));
}

bool is_refused(const api::TrainingJob& job, const api::AllocatedPod& allocated,
                const kube::Pod* pod, const World& world) {
  return pod != nullptr && is_listed(job.status.avoided_nodes, allocated.node) &&
         world.given_up.contains(refusal_key(pod->meta.uid));
}

std::string refusal_key(const std::string& pod_uid) { return pod_uid + " refused"; }

std::string start_key(const std::string& ns, const api::AllocatedPod& allocated,
                      const kube::Pod* pod) {
  if (pod == nullptr) return ns + "/" + allocated.name + " made";
  switch (pod->phase) {
    case kube::PodPhase::kPending:
      return pod->meta.uid + " started";
    case kube::PodPhase::kRunning:
      return pod->meta.uid + " heard";
    case kube::PodPhase::kSucceeded:
    case kube::PodPhase::kFailed:
    case kube::PodPhase::kUnknown:
      break;
  }
  return "";
}

}  // namespace rubato::control
