// TrainingQueue (cluster-scoped): who shares the GPUs, and how. A job names its queue; a queue may
// stand under a parent.
#pragma once

#include "operator/api/conditions.h"
#include "operator/api/enums.h"
#include "operator/api/object_meta.h"
#include "operator/api/schema.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rubato::api {

struct QueueQuota {
  std::string gpu_type;  // value of nvidia.com/gpu.product; "*": all types together
  std::int32_t guaranteed = 0;
  std::optional<std::int32_t> limit;  // unset: no limit

  static const ObjectSchema& schema();
  bool operator==(const QueueQuota&) const = default;
};

// What the jobs of one namespace may hold of the queue, each namespace for itself.
struct NamespaceLimit {
  std::string gpu_type;  // as QueueQuota::gpu_type
  std::int32_t limit = 0;

  static const ObjectSchema& schema();
  bool operator==(const NamespaceLimit&) const = default;
};

// Guaranteed pieces of the cluster (HiveD): `count` whole nodes, or domains of a topology level.
struct QueueCell {
  std::string gpu_type;
  std::string level;
  std::int32_t count = 0;

  static const ObjectSchema& schema();
  bool operator==(const QueueCell&) const = default;
};

struct TrainingQueueSpec {
  double weight = 1.0;                  // share beyond the guarantees, under drf
  std::string parent;                   // the queue that it is a part of
  bool borrowing = true;                // may use what others leave idle, until they want it back
  std::vector<std::string> namespaces;  // that may use it; empty: all
  Preemption preemption = Preemption::kWithinQueue;
  std::vector<QueueQuota> quotas;
  std::vector<NamespaceLimit> limits_per_namespace;
  std::vector<QueueCell> cells;

  static const ObjectSchema& schema();
  bool operator==(const TrainingQueueSpec&) const = default;
};

struct QueueUsage {
  std::string gpu_type;
  std::int32_t gpus = 0;

  static const ObjectSchema& schema();
  bool operator==(const QueueUsage&) const = default;
};

struct TrainingQueueStatus {
  std::int64_t pending = 0;
  std::int64_t running = 0;
  std::int32_t gpus = 0;
  std::optional<std::int32_t> share;  // where weights count
  std::vector<QueueUsage> usage;
  std::string installation;  // whose jobs these are
  std::vector<Condition> conditions;

  static const ObjectSchema& schema();
  bool operator==(const TrainingQueueStatus&) const = default;
};

struct TrainingQueue {
  ObjectMeta meta;
  TrainingQueueSpec spec;
  TrainingQueueStatus status;
};
Result<TrainingQueue> decode_training_queue(const json::Value& object);

}  // namespace rubato::api
