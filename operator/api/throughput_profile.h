// ThroughputProfile (cluster-scoped): measured speed of one model on GPU types and counts, shared
// between jobs, so that the second job of a kind is placed well from its first round.
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
  std::string plan;  // "t1p1d4": tensor, pipeline, data degrees
  double tokens_per_second = 0;
  std::optional<double> deviation;  // standard deviation of the above
  std::int64_t samples = 0;
  std::optional<WallTime> measured;

  static const ObjectSchema& schema();
  bool operator==(const ThroughputPoint&) const = default;
};

struct ThroughputProfileSpec {
  std::string model;  // digest of model, batch shape and precision
  std::int32_t sequence_length = 0;
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
