// ThroughputProfile (cluster-scoped, short name tpp): measured speed of one kind of job on GPU
// types and counts, so that the second job of a kind is placed well from its first round. The
// leader writes the one whose name is the kind (control/throughput_profiles.h); people may write
// others of the same kind.
#pragma once

#include "operator/api/object_meta.h"
#include "operator/api/schema.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rubato::api {

struct ThroughputPoint {
  std::string gpu_type;
  std::int32_t gpus = 0;
  double tokens_per_second = 0;
  std::optional<WallTime> measured;

  static const ObjectSchema& schema();
  bool operator==(const ThroughputPoint&) const = default;
};

// Of one profile: points on six GPU types at twenty counts each.
constexpr std::size_t kThroughputPointsMost = 120;

struct ThroughputProfileSpec {
  std::string model;        // status.throughputProfile of the jobs that it is of
  std::string description;  // for people
  std::vector<ThroughputPoint> points;

  static const ObjectSchema& schema();
  bool operator==(const ThroughputProfileSpec&) const = default;
};

struct ThroughputProfile {
  ObjectMeta meta;
  ThroughputProfileSpec spec;
};
Result<ThroughputProfile> decode_throughput_profile(const json::Value& object);

}  // namespace rubato::api
