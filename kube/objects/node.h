// Node: what schedulers and controllers read of a Node. Immutable once cached.
#pragma once

#include "kube/objects/meta.h"
#include "kube/objects/pod.h"

#include <string_view>

namespace rubato::kube {

struct Node {
  Meta meta;
  bool unschedulable = false;
  std::string provider_id;
  std::vector<Taint> taints;
  Amounts capacity;
  Amounts allocatable;

  enum class Ready { kTrue, kFalse, kUnknown } ready = Ready::kUnknown;
  std::string ready_reason;
  WallTime ready_transition{};
  WallTime last_heartbeat{};
  std::vector<ObjectCondition> conditions;
  std::string boot_id;
  std::string internal_ip;
  std::string hostname;
  int daemon_port = 0;  // kubelet's

  static ResourceType type() { return types::kNode; }
  static Result<Node> decode(const json::Value& value);
  static Result<Node> decode_raw(std::string_view bytes);
};

}  // namespace rubato::kube
