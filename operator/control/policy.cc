#include "operator/control/policy.h"

#include "common/words.h"
#include "scheduler/common_parameters.h"
#include "scheduler/policy/missing_mechanism.h"
#include "scheduler/policy/registry.h"

#include <fmt/core.h>

namespace rubato::control {

namespace {

namespace condition = api::condition;
namespace reason = api::reason;

std::string missing_mechanism(const Policy& policy) {
  return sched::missing_mechanism(sched::descriptor_of(policy.plan.policy));
}

double in_seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

Policy policy_of(const Config& flags) {
  Policy policy;
  policy.plan.policy = sched::kDefaultPolicy;
  policy.plan.min_relative_gain = flags.min_gain;
  policy.round_interval = flags.round_interval;
  policy.gang_start = flags.gang_start;
  return policy;
}

Result<Policy> policy_of(const Config& flags, const api::SchedulingPolicySpec& spec) {
  Policy policy = policy_of(flags);
  policy.spec = spec;
  policy.plan.policy = spec.policy;
  policy.round_interval = std::chrono::seconds(spec.round_seconds);
  policy.gang_start = std::chrono::seconds(spec.gang_start_seconds);
  policy.growth_pause = std::chrono::seconds(spec.rescale_budget.per_job_seconds);
  policy.plan.grown_per_round = spec.rescale_budget.jobs_per_round;
  for (const auto& [name, value] : spec.parameters) {
    const auto is_common = sched::set_common_parameter(policy.plan, name, value);
    if (!is_common.ok()) return Error(Code::kInvalid, "spec." + is_common.error().what());
    if (!*is_common) policy.plan.parameters[name] = value;
  }
  const auto made = sched::make_policy(policy.plan.policy, policy.plan.parameters);
  if (!made.ok())
    return Error(Code::kInvalid, fmt::format("spec.{} (all policies have {})", made.error().what(),
                                             sched::kCommonParameters));
  const std::string missing = missing_mechanism(policy);
  if (!missing.empty() && spec.missing_mechanism == api::MissingMechanism::kRefuse)
    return Error(Code::kInvalid,
                 fmt::format("spec.policy {} needs {}; set spec.missingMechanism to Degrade to run "
                             "it without, or choose another one",
                             policy.plan.policy, missing));
  return policy;
}

Result<Policy> policy_left(const Config& flags, const api::SchedulingPolicyStatus& status) {
  if (!status.in_force) return Error(Code::kNotFound, "status.inForce is not set");
  auto left = policy_of(flags, *status.in_force);
  return left.ok() ? left : left.error().in("status.inForce");
}

std::string to_text(const Policy& policy) {
  std::string name = policy.plan.policy;
  for (const auto& [parameter, value] : policy.plan.parameters)
    name += fmt::format(", {} {:g}", parameter, value);
  const std::string missing = missing_mechanism(policy);
  if (!missing.empty()) name += fmt::format(" (without {})", missing);
  return fmt::format(
      "{}: a round at least every {:g} s, gang start {:g} s, minRelativeGain {:g}, preempt {}, "
      "maxLoad {:g}, queueWeights {}, growth of one job at most every {:g} s, of at most {} a "
      "round",
      name, in_seconds(policy.round_interval), in_seconds(policy.gang_start),
      policy.plan.min_relative_gain, policy.plan.preempt ? 1 : 0, policy.plan.max_load,
      policy.plan.queue_weights ? 1 : 0, in_seconds(policy.growth_pause),
      counted(policy.plan.grown_per_round, "running job"));
}

api::SchedulingPolicyStatus policy_status(const api::SchedulingPolicy& object,
                                          const Policy& in_force, const std::string& refused,
                                          WallTime now) {
  api::SchedulingPolicyStatus status = object.status;
  status.observed_generation = object.meta.generation;
  api::Condition active;
  active.type = condition::kActive;
  active.observed_generation = object.meta.generation;
  const bool is_default = object.meta.name == kPolicyInForce;
  status.active = is_default ? in_force.plan.policy : "";
  status.in_force = is_default ? in_force.spec : std::nullopt;
  if (!is_default) {
    active.status = api::ConditionStatus::kFalse;
    active.reason = reason::kNotDefault;
    active.message = fmt::format(
        "only the SchedulingPolicy named \"{}\" is in force; rename this one", kPolicyInForce);
  } else if (!refused.empty()) {
    active.status = api::ConditionStatus::kFalse;
    active.reason = reason::kRefused;
    active.message = refused + ". In force stays " + to_text(in_force);
  } else {
    active.status = api::ConditionStatus::kTrue;
    active.reason = reason::kLoaded;
    active.message = to_text(in_force);
  }
  api::set_condition(status.conditions, std::move(active), now);
  return status;
}

}  // namespace rubato::control
