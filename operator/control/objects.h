// Informer traits of the resources that only operator/control reads.
#pragma once

#include "common/json.h"
#include "kube/objects/meta.h"
#include "operator/api/scheduling_policy.h"
#include "operator/api/throughput_profile.h"
#include "operator/api/training_job.h"
#include "operator/api/training_queue.h"

#include <cstddef>
#include <optional>
#include <string_view>

namespace rubato::control {

struct JobObject {
  kube::Meta meta;
  api::TrainingJob job;
  json::Value status;  // as it stands on the server: patches are differences to it
  // What of its spec cannot be read, and rules that it breaks, which stood before they did, or were
  // got past; "" when none.
  std::string problem;
  std::string profile;  // throughput_profiles.h

  static kube::ResourceType type();
  static Result<JobObject> decode(const json::Value& value);
};

struct ProfileObject {
  kube::Meta meta;
  api::ThroughputProfile profile;

  static kube::ResourceType type();
  static Result<ProfileObject> decode(const json::Value& value);
};

struct QueueObject {
  kube::Meta meta;
  api::TrainingQueue queue;
  json::Value status;  // as it stands on the server

  static kube::ResourceType type();
  static Result<QueueObject> decode(const json::Value& value);
};

struct PolicyObject {
  kube::Meta meta;
  api::SchedulingPolicy policy;
  json::Value status;  // as it stands on the server

  static kube::ResourceType type();
  static Result<PolicyObject> decode(const json::Value& value);
};

struct PriorityClassObject {
  kube::Meta meta;
  std::int64_t value = 0;
  bool global_default = false;
  bool preempts = true;  // preemptionPolicy is not Never

  static kube::ResourceType type();
  static Result<PriorityClassObject> decode(const json::Value& value);
};

// A node's Lease: the freshest sign of life that a kubelet gives.
inline constexpr std::string_view kNodeLeases = "kube-node-lease";  // their namespace
struct NodeLease {
  kube::Meta meta;
  WallTime renewed{};
  Duration duration{};

  static kube::ResourceType type();
  static Result<NodeLease> decode(const json::Value& value);
};

}  // namespace rubato::control
