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
  std::vector<std::shared_ptr<const NodeLease>> leases;
  std::vector<std::shared_ptr<const kube::Claim>> claims;    // sorted by key, as stores have them
  std::vector<std::shared_ptr<const kube::Volume>> volumes;  // and these
  std::vector<std::shared_ptr<const kube::StorageClass>> storage_classes;
  std::function<std::optional<coordinator::View>(const std::string& job_uid)> view_of;
  // Nodes on which a worker fell silent, and when: no new pod until their Lease renews after that.
  std::map<std::string, WallTime> suspects;
  // Pods lost in a way the API does not show: the uids of those whose agent fell silent, and the
  // "namespace/name" of allocated pods that were deleted.
  std::set<std::string> lost_pods;
  // The start_keys of pods that were not made, not started, or not heard of, in time (one that
  // starts after all is kept), and the refusal_keys of those whose worker cannot take part. They
  // count once their node is on the job's list of avoided ones: the durable decision first.
  std::set<std::string> given_up;
  std::map<std::string, HeldBack> held_back;          // by job uid; some may be over
  std::map<std::string, FailedStarts> failed_starts;  // and these
  // Jobs that were grown so short a while ago that they are not grown again yet.
  std::set<std::string> grown_lately;
  WallTime now{};
};

sched::ClusterState capture(const World& world, const Config& config);

// Claims of its pods that one node, or one pod, may use at a time: who is given one in a plan,
// others get in a later one, which sees where it is.
std::vector<kube::Key> exclusive_claims(const api::TrainingJob& job, const World& world,
                                        const Config& config);

// Is this job for the scheduler: not finished, not suspended, not being deleted, already seen by
// the job controller?
bool is_schedulable(const JobObject& job);

// A pod of the job's allocation is lost when it ended before the job, was deleted, fell silent, was
// not made or started in time, or is refused; and when its node is gone, which is not looked at
// here.
bool is_lost(const api::TrainingJob& job, const api::AllocatedPod& allocated, const kube::Pod* pod,
             const World& world);

// Was it given up, and does it still wait for the same?
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
