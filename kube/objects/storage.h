// What a scheduler reads of storage: PersistentVolumeClaims, PersistentVolumes, StorageClasses.
// Immutable once cached.
#pragma once

#include "kube/objects/node_terms.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rubato::kube {

// Of a claim, by the scheduler: the node for which its volume is to be made. A provisioner that
// cannot make it there removes the annotation.
constexpr std::string_view kSelectedNode = "volume.kubernetes.io/selected-node";
// Of a claim or a volume, by whoever chose the volume instead of a person.
constexpr std::string_view kBoundByController = "pv.kubernetes.io/bound-by-controller";
// The provisioner of classes whose volumes somebody makes by hand.
constexpr std::string_view kNoProvisioner = "kubernetes.io/no-provisioner";

struct AccessModes {
  bool one_node = false;    // ReadWriteOnce
  bool many_nodes = false;  // ReadOnlyMany, ReadWriteMany
  bool one_pod = false;     // ReadWriteOncePod
  std::vector<std::string> names;
  bool operator==(const AccessModes&) const = default;
};

struct Claim {
  Meta meta;
  enum class Phase { kPending, kBound, kLost } phase = Phase::kPending;
  std::string volume;                        // "" until one is chosen
  std::optional<std::string> storage_class;  // "": none is wanted; nothing: the default one
  AccessModes modes;
  std::string volume_mode;     // "Filesystem" | "Block"
  std::int64_t requested = 0;  // bytes
  Selector selector;           // of volumes
  std::string selected_node;

  static ResourceType type() { return types::kPersistentVolumeClaim; }
  static Result<Claim> decode(const json::Value& value);
};

struct Volume {
  Meta meta;
  std::string storage_class;
  AccessModes modes;
  std::string volume_mode;
  std::int64_t capacity = 0;  // bytes
  NodeTerms nodes;            // from which it can be reached
  bool available = false;     // status.phase
  std::optional<Key> claim;   // whose it is, or is kept for
  std::string claim_uid;

  static ResourceType type() { return types::kPersistentVolume; }
  static Result<Volume> decode(const json::Value& value);
};

struct StorageClass {
  Meta meta;
  std::string provisioner;
  bool waits_for_consumer = false;  // volumeBindingMode WaitForFirstConsumer
  NodeTerms topologies;             // where it can make volumes
  bool is_default = false;

  static ResourceType type() { return types::kStorageClass; }
  static Result<StorageClass> decode(const json::Value& value);
};

}  // namespace rubato::kube
