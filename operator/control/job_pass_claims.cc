// What a reconcile does with the claims of a pod before it binds it: chooses the node for which a
// volume is made, or the volume, as kube-scheduler does, and waits until the claim is bound.
#include "operator/control/job_pass.h"

#include <algorithm>

#include <fmt/core.h>

namespace rubato::control {

using json::Value;

namespace {
bool is_of_an_old_view(const Error& error) {
  return error.code() == Code::kConflict || error.code() == Code::kNotFound;
}
}  // namespace

// `ready`: nothing stands between the pod and the node.
Status JobPass::ready_claims(const kube::Pod& pod, const std::string& node, bool& ready) {
  ready = true;
  const std::vector<kube::Key> claims = claims_of(pod);
  if (claims.empty()) return ok();
  const auto found = d_.caches.nodes.store().get({"", node});
  if (!found) return ok();  // binding says what is wrong
  const StorageView storage = d_.caches.storage();
  for (const kube::Key& key : claims) {
    const auto claim = storage.claim(key);
    switch (claim_state(claim.get(), *found, storage)) {
      case ClaimState::kReady:
        (void)d_.memory.take_selected(job_.meta.uid, claim->meta.uid);
        continue;
      case ClaimState::kElsewhere:
        ready = false;
        give_up_node(node, pod,
                     fmt::format("volume {} of claim {} cannot be reached from there",
                                 claim->volume, key.name));
        continue;
      case ClaimState::kUnselected:
        ready = false;
        TRY_OK(select_node(*claim, pod, *found));
        break;
      case ClaimState::kSelected:
        ready = false;
        // A node that is gone is nobody's to make a volume for.
        if (!d_.caches.nodes.store().get({"", claim->selected_node}))
          TRY_OK(annotate_claim(*claim, node));
        break;
      case ClaimState::kWaits:  // the scheduler's verdict says why, once it is given back
        ready = false;
        break;
    }
    start_waits_.insert(fmt::format("waits until claim {} is bound; see kubectl describe pvc {}",
                                    key.name, key.name));
  }
  return ok();
}

// A selection that is gone again although the claim is not bound was refused by who makes volumes.
Status JobPass::select_node(const kube::Claim& claim, const kube::Pod& pod,
                            const kube::Node& node) {
  const auto storage_class =
      d_.caches.storage_classes.store().get({"", claim.storage_class.value_or("")});
  if (storage_class && is_by_hand(*storage_class)) return bind_volume(claim, pod, node);
  if (const auto refused = d_.memory.take_selected(job_.meta.uid, claim.meta.uid))
    give_up_node(*refused, pod,
                 fmt::format("{} cannot make the volume of claim {} there: see kubectl describe "
                             "pvc {}",
                             storage_class ? storage_class->provisioner : "its provisioner",
                             claim.meta.name, claim.meta.name));
  // What was given up stays so, until the scheduler has found another; whoever leads.
  if (const api::AvoidedNode* avoided = find_avoided(avoided_nodes_, node.meta.name);
      avoided != nullptr && avoided->reason == kVolumeRefused &&
      is_avoided(*avoided, wall(), d_.policy.get()->gang_start)) {
    give_up_node(node.meta.name, pod, avoided->message);
    return ok();
  }
  return annotate_claim(claim, node.meta.name);
}

// Only over the state that was judged: somebody else may have selected meanwhile.
Status JobPass::annotate_claim(const kube::Claim& claim, const std::string& node) {
  const std::string what = fmt::format("the choice of node {} for claim {}", node, claim.meta.name);
  if (waits_after_refusal(what)) return ok();
  const Value patch = Value::object(
      {{"metadata", Value::object({{"resourceVersion", claim.meta.resource_version},
                                   {"annotations",
                                    Value::object({{std::string(kube::kSelectedNode), node}})}})}});
  const auto written = d_.client.patch(kube::types::kPersistentVolumeClaim, claim.meta.key(),
                                       kube::PatchType::kMerge, patch);
  if (!written.ok() && !is_of_an_old_view(written.error()))
    return note_refusal(what, written.error());
  again_ = std::min<Duration>(again_, kWhileBehind);
  if (!written.ok()) return ok();  // the cache will show it
  d_.caches.claims.wrote(*written);
  d_.memory.note_selected(job_.meta.uid, claim.meta.uid, node);
  emit({kube::EventLevel::kNormal, "VolumeNodeSelected", "Binding",
        fmt::format("claim {}: its volume is to be made for node {}", claim.meta.name, node)});
  return ok();
}

// A volume that somebody made: it is kept for the claim, and Kubernetes' controller binds the two.
Status JobPass::bind_volume(const kube::Claim& claim, const kube::Pod& pod,
                            const kube::Node& node) {
  const auto volume = volume_for(claim, node, d_.caches.storage());
  if (!volume) {
    give_up_node(node.meta.name, pod,
                 fmt::format("no free volume that suits claim {} is there", claim.meta.name));
    return ok();
  }
  if (volume->claim && volume->claim_uid == claim.meta.uid) return ok();
  const std::string what =
      fmt::format("the choice of volume {} for claim {}", volume->meta.name, claim.meta.name);
  if (waits_after_refusal(what)) return ok();
  const Value reference = Value::object({{"apiVersion", "v1"},
                                         {"kind", "PersistentVolumeClaim"},
                                         {"namespace", claim.meta.ns},
                                         {"name", claim.meta.name},
                                         {"uid", claim.meta.uid}});
  const Value patch = Value::object(
      {{"metadata",
        Value::object(
            {{"resourceVersion", volume->meta.resource_version},
             {"annotations", Value::object({{std::string(kube::kBoundByController), "yes"}})}})},
       {"spec", Value::object({{"claimRef", reference}})}});
  const auto written = d_.client.patch(kube::types::kPersistentVolume, volume->meta.key(),
                                       kube::PatchType::kMerge, patch);
  if (!written.ok() && !is_of_an_old_view(written.error()))
    return note_refusal(what, written.error());
  again_ = std::min<Duration>(again_, kWhileBehind);
  if (!written.ok()) return ok();
  d_.caches.volumes.wrote(*written);
  emit({kube::EventLevel::kNormal, "VolumeSelected", "Binding",
        fmt::format("claim {}: volume {} is kept for it, on node {}", claim.meta.name,
                    volume->meta.name, node.meta.name)});
  return ok();
}

// All pods that the job was to have on the node go elsewhere; the back-off stands in
// status.avoidedNodes. `pod`: of those; the cache may not show it yet.
void JobPass::give_up_node(const std::string& node, const kube::Pod& pod, const std::string& why) {
  for (const auto& [name, allocated] : allocated_) {
    const kube::Pod* there = name == pod.meta.name ? &pod : find(name);
    if (allocated->node != node || (there != nullptr && !there->node_name.empty())) continue;
    give_up(start_key(job_.meta.ns, *allocated, there),
            {node, std::string(kVolumeRefused), why, kRefusalWait},
            fmt::format("pod {} cannot be bound to node {}: {}", name, node, why));
  }
}

}  // namespace rubato::control
