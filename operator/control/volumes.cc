#include "operator/control/volumes.h"

#include "operator/api/conditions.h"

#include <algorithm>

#include <fmt/format.h>

namespace rubato::control {

namespace {

using kube::Claim;
using kube::StorageClass;
using kube::Volume;

// May the volume become the claim's?
bool suits(const Volume& volume, const Claim& claim) {
  const bool is_kept = volume.claim.has_value();
  if (is_kept && (*volume.claim != claim.meta.key() ||
                  (!volume.claim_uid.empty() && volume.claim_uid != claim.meta.uid)))
    return false;
  if (volume.meta.deleting || (!is_kept && !volume.available)) return false;
  if (volume.storage_class != claim.storage_class.value_or("")) return false;
  if (volume.capacity < claim.requested || volume.volume_mode != claim.volume_mode) return false;
  const auto& has = volume.modes.names;
  for (const std::string& mode : claim.modes.names)
    if (std::find(has.begin(), has.end(), mode) == has.end()) return false;
  return claim.selector.matches(
      [&](std::string_view key) { return kube::find(volume.meta.labels, key); });
}

// Of those that suit it, the ones that are kept for it already, if any: it gets no second one.
std::vector<std::shared_ptr<const Volume>> volumes_by_hand(const Claim& claim,
                                                           const StorageView& storage) {
  std::vector<std::shared_ptr<const Volume>> found;
  for (const auto& volume : storage.volumes())
    if (suits(*volume, claim)) found.push_back(volume);
  const auto is_kept = [](const auto& volume) { return volume->claim.has_value(); };
  if (std::any_of(found.begin(), found.end(), is_kept))
    std::erase_if(found, [&](const auto& volume) { return !is_kept(volume); });
  return found;
}

class Survey {
 public:
  Survey(std::int64_t pods_max, const StorageView& storage)
      : pods_max_(pods_max), storage_(storage) {}

  VolumeNeeds run(const kube::Pod& pod) {
    for (const std::string& name : pod.claims) look_at({pod.meta.ns, name});
    for (const kube::EphemeralVolume& volume : pod.ephemeral) look_at_ephemeral(volume);
    return std::move(needs_);
  }

 private:
  // The first is told; with it mended, the next.
  void wait(std::string_view reason, std::string message) {
    if (needs_.problem.reason.empty())
      needs_.problem = {std::string(reason), "spec.template.spec.volumes: " + std::move(message)};
  }

  void look_at(const kube::Key& key) {
    const auto claim = storage_.claim(key);
    if (!claim && storage_.are_claims_denied(key.ns))
      return wait(api::reason::kClaimsDenied,
                  fmt::format("the PersistentVolumeClaim \"{}\" is not known, for the operator may "
                              "not list the claims of namespace \"{}\"; give it back its "
                              "RoleBinding there (helm upgrade makes it anew)",
                              key.name, key.ns));
    if (!claim || claim->meta.deleting)
      return wait(api::reason::kClaimNotFound,
                  fmt::format("the PersistentVolumeClaim \"{}\" {} in namespace \"{}\"; create it, "
                              "or name another",
                              key.name, claim ? "is being deleted" : "does not exist", key.ns));
    if (claim->phase == Claim::Phase::kLost)
      return wait(
          api::reason::kClaimLost,
          fmt::format("the claim \"{}\" has lost its PersistentVolume \"{}\"; what was on it "
                      "is gone: delete the claim and create it anew, or restore the volume",
                      key.name, claim->volume));
    if (claim->phase == Claim::Phase::kBound) return look_at_bound(*claim);
    sharing(*claim, claim->modes);
    look_at_unbound(*claim);
  }

  void look_at_bound(const Claim& claim) {
    const auto volume = storage_.volume(claim.volume);
    if (!volume)
      return wait(api::reason::kClaimNotBound,
                  fmt::format("the PersistentVolume \"{}\" of claim \"{}\" does not exist; restore "
                              "it, or delete the claim and create it anew",
                              claim.volume, claim.meta.name));
    sharing(claim, volume->modes);
    reached(volume->nodes, fmt::format("volume \"{}\" of claim \"{}\" can be reached from some "
                                       "nodes only: its spec.nodeAffinity",
                                       volume->meta.name, claim.meta.name));
  }

  // Of a bound claim what the volume can do counts; that a claim is one pod's is its own word.
  void sharing(const Claim& claim, const kube::AccessModes& modes) {
    if (claim.modes.one_pod) {
      needs_.one_pod.push_back(claim.meta.key());
      if (pods_max_ > 1)
        wait(api::reason::kClaimInUse,
             fmt::format("the claim \"{}\" is ReadWriteOncePod, for one pod alone, and this job "
                         "may have {} pods; use a claim with ReadWriteMany, or set gpus.max to "
                         "gpus.perPod",
                         claim.meta.name, pods_max_));
    } else if (!modes.many_nodes) {
      needs_.one_node.push_back(claim.meta.key());
    }
  }

  void look_at_unbound(const Claim& claim) {
    const std::string& name = claim.meta.name;
    if (!claim.volume.empty())
      return wait(api::reason::kClaimNotBound,
                  fmt::format("the claim \"{}\" waits for its PersistentVolume \"{}\"; see kubectl "
                              "describe pvc {}",
                              name, claim.volume, name));
    const std::string class_name = claim.storage_class.value_or("");
    if (class_name.empty())
      return wait(api::reason::kClaimNotBound,
                  fmt::format("the claim \"{}\" is not bound and names no StorageClass, so nobody "
                              "makes a volume for it; make a PersistentVolume that suits it, or "
                              "create the claim anew with spec.storageClassName (kubectl get sc)",
                              name));
    const auto found = storage_.storage_class(class_name);
    if (!found) return missing_class(fmt::format("the claim \"{}\" names", name), class_name);
    if (!found->waits_for_consumer)
      return wait(
          api::reason::kClaimNotBound,
          fmt::format("the claim \"{}\" is not bound yet; StorageClass \"{}\" binds at once "
                      "(Immediate), so its provisioner {} is late or fails: see kubectl "
                      "describe pvc {}",
                      name, class_name, found->provisioner, name));
    if (!claim.selected_node.empty())
      return wait(api::reason::kClaimNotBound,
                  fmt::format("the volume of claim \"{}\" is being made for node {} by {}; if that "
                              "takes long, see kubectl describe pvc {}",
                              name, claim.selected_node, found->provisioner, name));
    if (is_by_hand(*found)) return by_hand(claim);
    may_be_made(*found, fmt::format("the claim \"{}\"", name));
  }

  void look_at_ephemeral(const kube::EphemeralVolume& volume) {
    const auto found = volume.storage_class ? storage_.storage_class(*volume.storage_class)
                                            : storage_.default_class();
    const std::string who = fmt::format("the ephemeral volume \"{}\"", volume.name);
    if (found) return may_be_made(*found, who);
    if (volume.storage_class && !volume.storage_class->empty())
      return missing_class(who + " names", *volume.storage_class);
    wait(api::reason::kStorageClassNotFound,
         who +
             " names no StorageClass, and none is the default; set "
             "volumeClaimTemplate.spec.storageClassName (kubectl get sc)");
  }

  void missing_class(const std::string& who_names, const std::string& name) {
    wait(api::reason::kStorageClassNotFound,
         fmt::format("{} StorageClass \"{}\", which does not exist; create it, or name another "
                     "(kubectl get sc)",
                     who_names, name));
  }

  void may_be_made(const StorageClass& found, const std::string& who) {
    reached(found.topologies, fmt::format("{} is made in some places only: allowedTopologies of "
                                          "StorageClass \"{}\"",
                                          who, found.meta.name));
  }

  // Volumes that somebody made: on a node that has one of them.
  void by_hand(const Claim& claim) {
    kube::NodeTerms all;
    bool anywhere = false;
    const auto found = volumes_by_hand(claim, storage_);
    for (const auto& volume : found) {
      anywhere = anywhere || volume->nodes.empty();
      const auto& terms = volume->nodes.terms;
      all.terms.insert(all.terms.end(), terms.begin(), terms.end());
    }
    if (found.empty())
      return wait(
          api::reason::kClaimNotBound,
          fmt::format("no free PersistentVolume of StorageClass \"{}\" suits the claim "
                      "\"{}\" (its size, access modes and selector), and nobody makes any "
                      "({}); make one by hand",
                      claim.storage_class.value_or(""), claim.meta.name, kube::kNoProvisioner));
    if (anywhere) return;
    reached(std::move(all), fmt::format("claim \"{}\" needs a free volume of StorageClass \"{}\" "
                                        "there",
                                        claim.meta.name, claim.storage_class.value_or("")));
  }

  void reached(kube::NodeTerms nodes, std::string why) {
    if (!nodes.empty()) needs_.reach.push_back({std::move(nodes), std::move(why)});
  }

  const std::int64_t pods_max_;
  const StorageView& storage_;
  VolumeNeeds needs_;
};

}  // namespace

std::shared_ptr<const StorageClass> default_class(
    const std::vector<std::shared_ptr<const StorageClass>>& classes) {
  std::shared_ptr<const StorageClass> newest;
  for (const auto& each : classes)
    if (each->is_default && (!newest || each->meta.created > newest->meta.created)) newest = each;
  return newest;
}

namespace {
template <class T>
std::shared_ptr<const T> find_in(const std::vector<std::shared_ptr<const T>>& sorted,
                                 const kube::Key& key) {
  const auto at = std::lower_bound(
      sorted.begin(), sorted.end(), key,
      [](const auto& object, const kube::Key& wanted) { return object->meta.key() < wanted; });
  return at != sorted.end() && (*at)->meta.key() == key ? *at : nullptr;
}
}  // namespace

StorageView storage_of(const std::vector<std::shared_ptr<const Claim>>& claims,
                       const std::vector<std::shared_ptr<const Volume>>& volumes,
                       const std::vector<std::shared_ptr<const StorageClass>>& classes,
                       const std::set<std::string>& claims_denied) {
  return {[&](const kube::Key& key) { return find_in(claims, key); },
          [&](const std::string& name) { return find_in(volumes, {"", name}); },
          [&](const std::string& name) { return find_in(classes, {"", name}); },
          [&] { return default_class(classes); },
          [&] { return volumes; },
          [&](const std::string& ns) { return claims_denied.contains(ns); }};
}

bool is_by_hand(const StorageClass& found) { return found.provisioner == kube::kNoProvisioner; }

bool VolumeNeeds::admits(const kube::Node& node) const {
  return std::all_of(reach.begin(), reach.end(), [&](const Reach& each) {
    return each.nodes.admits(node.meta.labels, node.meta.name);
  });
}

std::string VolumeNeeds::why_narrow() const {
  std::vector<std::string> all;
  all.reserve(reach.size() + one_node.size());
  for (const Reach& each : reach) all.push_back(each.why);
  for (const kube::Key& key : one_node)
    all.push_back(fmt::format(
        "claim \"{}\" is for one node at a time; ReadWriteMany is for several", key.name));
  return fmt::format("{}", fmt::join(all, "; "));
}

VolumeNeeds volume_needs(const kube::Pod& pod, std::int64_t pods_max, const StorageView& storage) {
  return Survey(pods_max, storage).run(pod);
}

ClaimState claim_state(const Claim* claim, const kube::Node& node, const StorageView& storage) {
  if (claim == nullptr || claim->meta.deleting) return ClaimState::kWaits;
  if (claim->phase == Claim::Phase::kBound) {
    const auto volume = storage.volume(claim->volume);
    if (!volume) return ClaimState::kWaits;
    return volume->nodes.admits(node.meta.labels, node.meta.name) ? ClaimState::kReady
                                                                  : ClaimState::kElsewhere;
  }
  if (claim->phase == Claim::Phase::kLost || !claim->volume.empty()) return ClaimState::kWaits;
  const auto found = storage.storage_class(claim->storage_class.value_or(""));
  if (!found || !found->waits_for_consumer) return ClaimState::kWaits;
  return claim->selected_node.empty() ? ClaimState::kUnselected : ClaimState::kSelected;
}

std::vector<kube::Key> claims_of(const kube::Pod& pod) {
  std::vector<kube::Key> keys;
  keys.reserve(pod.claims.size() + pod.ephemeral.size());
  for (const std::string& name : pod.claims) keys.push_back({pod.meta.ns, name});
  for (const kube::EphemeralVolume& volume : pod.ephemeral)
    keys.push_back({pod.meta.ns, pod.meta.name + "-" + volume.name});
  return keys;
}

std::shared_ptr<const Volume> volume_for(const Claim& claim, const kube::Node& node,
                                         const StorageView& storage) {
  std::shared_ptr<const Volume> best;  // ties by name, in whose order they come
  for (const auto& volume : volumes_by_hand(claim, storage)) {
    if (!volume->nodes.admits(node.meta.labels, node.meta.name)) continue;
    if (!best || volume->capacity < best->capacity) best = volume;
  }
  return best;
}

}  // namespace rubato::control
