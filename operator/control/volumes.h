// What the volumes of a job's pods ask of the cluster: which nodes reach them, whether several may
// use them at once, and what must happen before a pod can be bound. kube-scheduler's rules, for a
// job whose pods all mount the same claims. Pure.
#pragma once

#include "kube/objects/node.h"
#include "kube/objects/pod.h"
#include "kube/objects/storage.h"

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace rubato::control {

// The storage of the cluster, as the caches show it. Null: there is none of that name.
struct StorageView {
  std::function<std::shared_ptr<const kube::Claim>(const kube::Key&)> claim;
  std::function<std::shared_ptr<const kube::Volume>(const std::string&)> volume;
  std::function<std::shared_ptr<const kube::StorageClass>(const std::string&)> storage_class;
  std::function<std::shared_ptr<const kube::StorageClass>()> default_class;
  std::function<std::vector<std::shared_ptr<const kube::Volume>>()> volumes;
  // May the claims of the namespace not be listed now? Then those are shown that were seen before.
  std::function<bool(const std::string&)> are_claims_denied;
};

// Over lists that are sorted by key, as stores give them, and that outlive it.
StorageView storage_of(const std::vector<std::shared_ptr<const kube::Claim>>& claims,
                       const std::vector<std::shared_ptr<const kube::Volume>>& volumes,
                       const std::vector<std::shared_ptr<const kube::StorageClass>>& classes,
                       const std::set<std::string>& claims_denied = {});
// Of several, the one that was made last, as Kubernetes has it. Null: there is none.
std::shared_ptr<const kube::StorageClass> default_class(
    const std::vector<std::shared_ptr<const kube::StorageClass>>& classes);

// Why a job waits for its volumes, and how to help it: a reason of its condition Queued. "": it
// does not.
struct VolumeProblem {
  std::string reason;
  std::string message;
};

struct VolumeNeeds {
  VolumeProblem problem;
  // A node must be admitted by each; the clause says which volume asks for it.
  struct Reach {
    kube::NodeTerms nodes;
    std::string why;
  };
  std::vector<Reach> reach;
  // Claims whose volumes one node may use at a time, or one pod.
  std::vector<kube::Key> one_node;
  std::vector<kube::Key> one_pod;

  bool admits(const kube::Node& node) const;
  std::string why_narrow() const;  // all the clauses
};

// `pod`: as the job's template makes it. `pods_max`: as many as the job may have.
VolumeNeeds volume_needs(const kube::Pod& pod, std::int64_t pods_max, const StorageView& storage);

// Are the volumes of this class made by hand (kubernetes.io/no-provisioner)?
bool is_by_hand(const kube::StorageClass& storage_class);

// What stands between a pod and its node.
enum class ClaimState {
  kReady,       // bound, and its volume can be reached from the node
  kElsewhere,   // bound to a volume that cannot
  kUnselected,  // the volume is to be made, or chosen, for a node: none is selected yet
  kSelected,    // it is: whoever makes volumes is at work
  kWaits,       // as volume_needs() says
};
// `claim`: null where there is none.
ClaimState claim_state(const kube::Claim* claim, const kube::Node& node,
                       const StorageView& storage);

// The claims of a pod that was made: those that it names, and those that are made for it.
std::vector<kube::Key> claims_of(const kube::Pod& pod);

// Of volumes that somebody made by hand, the one that suits the claim best on this node: one that
// is kept for it, else the smallest that is free. Null: there is none.
std::shared_ptr<const kube::Volume> volume_for(const kube::Claim& claim, const kube::Node& node,
                                               const StorageView& storage);

}  // namespace rubato::control
