// ClusterView: the border post between Kubernetes words and scheduler words. World is what the
// informers and the coordinator show at one moment; capture() turns it into the scheduler's
// immutable ClusterState. Pure functions.
//
// What is free on a node: allocatable, less every pod on it that has not ended (whoever made it;
// a pod that is terminating still holds its GPUs), less every promise of an allocation whose pod is
// not bound yet. So a GPU is given on only when its old pod is confirmed gone.
#pragma once

#include "kube/objects/node.h"
#include "kube/objects/pod.h"
#include "operator/control/config.h"
#include "operator/control/memory.h"
#include "operator/control/objects.h"
#include "operator/control/volumes.h"
#include "operator/coordinator/coordinator.h"
#include "scheduler/model/cluster_state.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace rubato::control {

struct World {
  std::vector<std::shared_ptr<const JobObject>> jobs;
  std::vector<std::shared_ptr<const kube::Pod>> pods;
  std::vector<std::shared_ptr<const kube::Node>> nodes;
  std::vector<std::shared_ptr<const QueueObject>> queues;
  std::vector<std::shared_ptr<const PolicyObject>> policies;
  std::vector<std::shared_ptr<const ProfileObject>> profiles;  // sorted by name
  std::vector<std::shared_ptr<const PriorityClassObject>> priorities;
  std::map<std::string, Renewal> renewals;                 // of nodes' Leases, by node
  std::vector<std::shared_ptr<const kube::Claim>> claims;  // sorted by key, as stores have them
  std::set<std::string> claims_denied;  // namespaces whose claims may not be listed now
  std::vector<std::shared_ptr<const kube::Volume>> volumes;  // sorted, too
  std::vector<std::shared_ptr<const kube::StorageClass>> storage_classes;
  std::function<std::optional<coordinator::View>(const std::string& job_uid)> view_of;
  // What came of a trial of the job's pod; none: nobody tried one, or knows of it.
  std::function<std::shared_ptr<const kube::Pod>(const std::string& job_uid)> admitted_of;
  // Nodes on which a worker fell silent, and when: no new pod until their Lease renews after that.
  std::map<std::string, MonoTime> suspects;
  // Pods lost in a way the API does not show: the uids of those whose agent fell silent, and the
  // "namespace/name" of allocated pods that were deleted.
  std::set<std::string> lost_pods;
  // The start_keys of pods that were not made, not started, or not heard of, in time (one that
  // starts after all is kept), and the refusal_keys of those whose worker cannot take part. Those
  // of pods that are there count once their node is on the job's list of avoided ones: the durable
  // decision first. That one is not made is no fault of its node, and it is never bound after that.
  std::set<std::string> given_up;
  std::map<std::string, HeldBack> held_back;          // by job uid; some may be over
  std::map<std::string, FailedStarts> failed_starts;  // and these
  std::map<std::string, GrowthLimit> growth_limits;   // and these
  // Jobs that were grown so short a while ago that they are not grown again yet.
  std::set<std::string> grown_lately;
  // Longest time that the pods of a gang may take to start (Policy::gang_start).
  Duration gang_start{};
  MonoTime now{};   // waits of this leader are timed by this one,
  WallTime wall{};  // and times that stand in objects by this one, of the same moment
};

sched::ClusterState capture(const World& world, const Config& config);

// Claims of its pods that one node, or one pod, may use at a time: who is given one in a plan,
// others get in a later one, which sees where it is.
std::vector<kube::Key> exclusive_claims(const api::TrainingJob& job, const World& world,
                                        const Config& config);

// Is this job for the scheduler: not finished, not suspended, not being deleted, already seen by
// the job controller, which found that its pods may be made?
bool is_schedulable(const JobObject& job);

// Does it wait without GPUs until its pods may be made?
bool is_pod_forbidden(const api::TrainingJob& job);

// Are its workers done, though its status may not say so yet? Asks the coordinator anew.
bool has_ended(const World& world, const std::string& job_uid);

// What pods of this class have now: of that name or, where it is "", of the cluster's default, of
// several the lowest. None: there is no class of that name.
std::optional<api::JobPriority> priority_of(
    const std::string& class_name,
    const std::vector<std::shared_ptr<const PriorityClassObject>>& classes);

// A pod of the job's allocation is lost when it ended before the job, was deleted, fell silent, was
// not made or started in time, or is refused; and when its node is gone, which is not looked at
// here.
bool is_lost(const api::TrainingJob& job, const api::AllocatedPod& allocated, const kube::Pod* pod,
             const World& world);

// Was it given up, and does it still wait for the same, or was it not made before that?
bool is_unstarted(const api::TrainingJob& job, const api::AllocatedPod& allocated,
                  const kube::Pod* pod, const World& world);
// Was it given up because a worker of it cannot take part?
bool is_refused(const api::TrainingJob& job, const api::AllocatedPod& allocated,
                const kube::Pod* pod, const World& world);
std::string refusal_key(const std::string& pod_uid);

// What the pod waits for before it can be of use: to be made (null), its node to start it, or, when
// it runs, its agent to be heard of. "" when it has ended.
std::string start_key(const std::string& ns, const api::AllocatedPod& allocated,
                      const kube::Pod* pod);

}  // namespace rubato::control
