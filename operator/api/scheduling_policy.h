// SchedulingPolicy (cluster-scoped): how the scheduler decides. The object named "default" is the
// one in force; it is read anew whenever it changes, and its status says what is active.
#pragma once

#include "operator/api/conditions.h"
#include "operator/api/object_meta.h"
#include "operator/api/schema.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace rubato::api {

// Limits how much a round may disturb running jobs by growing them.
struct RescaleBudget {
  std::int32_t per_job_seconds = 60;  // least time between two growths of one running job
  std::int32_t jobs_per_round = 100;  // most running jobs that a round grows

  static const ObjectSchema& schema();
  bool operator==(const RescaleBudget&) const = default;
};

struct SchedulingPolicySpec {
  std::string policy = "rubato";             // sched::kDefaultPolicy
  std::map<std::string, double> parameters;  // of the policy, by name (docs/policies.md)
  std::int32_t round_seconds = 10;        // longest time between rounds; events start one at once
  std::int32_t gang_start_seconds = 300;  // pods of a gang must all run within
  RescaleBudget rescale_budget;
  MissingMechanism missing_mechanism = MissingMechanism::kRefuse;

  static const ObjectSchema& schema();
  bool operator==(const SchedulingPolicySpec&) const = default;
};

struct SchedulingPolicyStatus {
  std::string active;  // policy in force, as the leader last loaded it
  // The spec that is in force, for the next leader: spec may have changed since and be refused.
  // None: the operator's flags are.
  std::optional<SchedulingPolicySpec> in_force;
  std::int64_t observed_generation = 0;
  std::string installation;  // whose leader that is
  std::vector<Condition> conditions;

  static const ObjectSchema& schema();
  bool operator==(const SchedulingPolicyStatus&) const = default;
};

struct SchedulingPolicy {
  ObjectMeta meta;
  SchedulingPolicySpec spec;
  SchedulingPolicyStatus status;
};
Result<SchedulingPolicy> decode_scheduling_policy(const json::Value& object);

}  // namespace rubato::api
