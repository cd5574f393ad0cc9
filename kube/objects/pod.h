// Pod: what schedulers and controllers read of a Pod. Immutable once cached.
#pragma once

#include "kube/objects/meta.h"
#include "kube/objects/node_terms.h"

#include <string_view>

namespace rubato::kube {

enum class PodPhase { kPending, kRunning, kSucceeded, kFailed, kUnknown };
const char* name_of(PodPhase phase);

struct ContainerStatus {
  std::string name;
  bool ready = false;
  int restarts = 0;
  enum class State { kWaiting, kRunning, kTerminated } state = State::kWaiting;
  std::string reason;   // of waiting or terminated: "ImagePullBackOff", "OOMKilled" …
  std::string message;  // of terminated: the kubelet's, the first kMessageBytesMax bytes
  int exit_code = 0;    // when terminated
  int signal = 0;
  bool operator==(const ContainerStatus&) const = default;
};

struct Toleration {
  std::string key;      // "" with kExists tolerates every key
  bool exists = false;  // operator Exists; otherwise Equal
  std::string value;
  std::string effect;  // "" tolerates every effect
  bool operator==(const Toleration&) const = default;
};

struct Taint {
  std::string key;
  std::string value;
  std::string effect;  // NoSchedule | PreferNoSchedule | NoExecute
  bool operator==(const Taint&) const = default;
};
bool tolerates(const std::vector<Toleration>& tolerations, const Taint& taint);

// A volume that comes and goes with its pod: a claim named "<pod>-<volume>" is made for it.
struct EphemeralVolume {
  std::string name;
  std::optional<std::string> storage_class;
  bool operator==(const EphemeralVolume&) const = default;
};

struct Pod {
  Meta meta;
  std::string node_name;  // "" until bound
  std::string scheduler_name;
  std::string nominated_node;
  int priority = 0;
  // What the pod takes from a node: the sum of its containers and sidecars, or its largest init
  // container when that is more, plus overhead. A limit without a request counts as a request.
  Amounts requests;
  StringMap node_selector;
  NodeTerms affinity;  // the required node affinity
  std::vector<Toleration> tolerations;
  std::vector<std::string> claims;  // PersistentVolumeClaims that its volumes name
  std::vector<EphemeralVolume> ephemeral;
  std::vector<std::string> scheduling_gates;
  bool has_resource_claims = false;  // dynamic resource allocation
  bool host_network = false;

  PodPhase phase = PodPhase::kPending;
  std::string reason;   // status.reason: "Evicted", "OutOfcpu" …
  std::string message;  // the first kMessageBytesMax bytes
  std::string pod_ip;
  std::string host_ip;
  WallTime started{};
  std::vector<ObjectCondition> conditions;
  std::vector<ContainerStatus> containers;

  bool is_ready() const;
  bool is_finished() const { return phase == PodPhase::kSucceeded || phase == PodPhase::kFailed; }

  static ResourceType type() { return types::kPod; }
  static Result<Pod> decode(const json::Value& value);
  static Result<Pod> decode_raw(std::string_view bytes);
};

constexpr std::size_t kMessageBytesMax = 256;

}  // namespace rubato::kube
