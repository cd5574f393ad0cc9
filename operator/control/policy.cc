#include "operator/control/policy.h"

#include "common/words.h"
#include "scheduler/common_parameters.h"
#include "scheduler/policy/missing_mechanism.h"
#include "scheduler/policy/registry.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <fmt/format.h>

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
  api::SchedulingPolicySpec taken = *status.in_force;
  taken.missing_mechanism = api::MissingMechanism::kDegrade;
  taken.parameters.clear();
  std::vector<std::string> refused;
  if (const auto named = policy_of(flags, taken); !named.ok()) {
    refused.push_back(named.error().what());
    taken.policy = sched::kDefaultPolicy;
  }
  const auto take = [&](const std::string& parameter, double value) -> Status {
    api::SchedulingPolicySpec with_it = taken;
    with_it.parameters[parameter] = value;
    TRY_OK(policy_of(flags, with_it));
    taken = std::move(with_it);
    return ok();
  };
  const std::vector<sched::Parameter> known = sched::descriptor_of(taken.policy).parameters;
  const auto counts = [&](const std::string& parameter) {
    const auto found = std::ranges::find(known, parameter, &sched::Parameter::name);
    return found != known.end() && found->is_whole;
  };
  for (const auto& [parameter, value] : status.in_force->parameters) {
    const Status taken_whole = take(parameter, value);
    if (taken_whole.ok()) continue;
    refused.push_back(taken_whole.error().what());
    // As releases did that took parts of what counts.
    if (counts(parameter)) (void)take(parameter, std::floor(value));
  }
  TRY(Policy left, policy_of(flags, taken));
  left.spec = status.in_force;  // for the release that takes it whole
  left.not_taken = fmt::format("{}", fmt::join(refused, "; "));
  return left;
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
    const bool is_whole = in_force.not_taken.empty();
    active.message =
        fmt::format("{}. In force {} {}", refused, is_whole ? "stays" : "is", to_text(in_force));
    if (!is_whole)
      active.message += ". Of what was in force this release refuses: " + in_force.not_taken;
  } else {
    active.status = api::ConditionStatus::kTrue;
    active.reason = reason::kLoaded;
    active.message = to_text(in_force);
  }
  api::set_condition(status.conditions, std::move(active), now);
  return status;
}

}  // namespace rubato::control
