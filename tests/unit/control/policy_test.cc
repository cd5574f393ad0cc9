#include "operator/control/policy.h"

#include "operator/api/codec.h"
#include "scheduler/policy/registry.h"

#include <gtest/gtest.h>

namespace rubato::control {
namespace {

const WallTime kLoadedAt = *parse_rfc3339("2026-11-21T08:00:00Z");

TEST(Policy, WithoutAnObjectTheFlagsHold) {
  Config flags;
  flags.min_gain = -1;
  flags.gang_start = 7s;
  const Policy policy = policy_of(flags);
  EXPECT_EQ(policy.plan.min_relative_gain, -1);
  EXPECT_EQ(policy.gang_start, 7s);
  EXPECT_EQ(policy.round_interval, 1s) << "as the chart's values.yaml says";
  EXPECT_EQ(policy.growth_pause, 0s);
}

TEST(Policy, TakesAllThatTheObjectSays) {
  api::SchedulingPolicySpec spec;
  spec.round_seconds = 3;
  spec.gang_start_seconds = 40;
  spec.rescale_budget = {30, 5};
  spec.parameters = {
      {"minRelativeGain", 0.1}, {"preempt", 0}, {"maxLoad", 1.5}, {"queueWeights", 1}};
  const auto policy = policy_of(Config{}, spec);
  ASSERT_TRUE(policy.ok());
  EXPECT_EQ(policy->round_interval, 3s);
  EXPECT_EQ(policy->gang_start, 40s);
  EXPECT_EQ(policy->growth_pause, 30s);
  EXPECT_EQ(policy->plan.grown_per_round, 5);
  EXPECT_EQ(policy->plan.min_relative_gain, 0.1);
  EXPECT_FALSE(policy->plan.preempt);
  EXPECT_EQ(policy->plan.max_load, 1.5);
  EXPECT_TRUE(policy->plan.queue_weights);
}

TEST(Policy, WhatItDoesNotKnowIsRefusedWithTheMend) {
  api::SchedulingPolicySpec spec{.policy = "marginalThroughput"};
  spec.parameters = {{"fairness", 1}};
  EXPECT_EQ(
      policy_of(Config{}, spec).error().what(),
      "spec.parameters.fairness is not known to policy marginalThroughput: it has none; remove "
      "it (all policies have maxLoad, minRelativeGain, preempt and queueWeights)");
  spec.parameters = {{"preempt", 2}};
  EXPECT_EQ(policy_of(Config{}, spec).error().what(),
            "spec.parameters.preempt is 2, but must be 0 or 1; change it");
}

TEST(Policy, SharesOfStorageAreRefusedOrLeftOut) {
  api::SchedulingPolicySpec spec;
  spec.policy = "silod";
  spec.missing_mechanism = api::MissingMechanism::kRefuse;
  EXPECT_EQ(policy_of(Config{}, spec).error().what(),
            "spec.policy silod needs shares of cache and remote bandwidth, which workers cannot "
            "keep to; set spec.missingMechanism to Degrade to run it without, or choose another "
            "one");
  spec.missing_mechanism = api::MissingMechanism::kDegrade;
  EXPECT_FALSE(policy_of(Config{}, spec).value().plan.storage_shares);
}

TEST(Policy, SharesOfCpuAndMemoryAreRefusedOrLeftOut) {
  api::SchedulingPolicySpec spec;
  spec.policy = "synergy";
  spec.missing_mechanism = api::MissingMechanism::kRefuse;
  EXPECT_EQ(policy_of(Config{}, spec).error().what(),
            "spec.policy synergy needs shares of CPU and memory that change, which workers cannot "
            "keep to; set spec.missingMechanism to Degrade to run it without, or choose another "
            "one");
  spec.missing_mechanism = api::MissingMechanism::kDegrade;
  EXPECT_FALSE(policy_of(Config{}, spec).value().plan.cpu_memory_shares);
}

TEST(Policy, WhatWorkersCannotDoIsRefusedOrLeftOut) {
  api::SchedulingPolicySpec spec;
  for (const char* name : {"lucid", "gandiva", "antMan"}) {
    spec.policy = name;
    spec.missing_mechanism = api::MissingMechanism::kRefuse;
    EXPECT_EQ(policy_of(Config{}, spec).error().what(),
              std::string("spec.policy ") + name +
                  " needs two jobs on one GPU (sharing), which workers cannot do; set "
                  "spec.missingMechanism to Degrade to run it without, or choose another one");
    spec.missing_mechanism = api::MissingMechanism::kDegrade;
    const auto policy = policy_of(Config{}, spec);
    ASSERT_TRUE(policy.ok());
    EXPECT_FALSE(policy->plan.sharing);
    EXPECT_EQ(to_text(*policy).find(std::string(name) +
                                    " (without two jobs on one GPU (sharing), which workers "
                                    "cannot do): a round"),
              0u);
  }
}

TEST(Policy, WhatCountsIsWhole) {
  for (const auto& [policy, parameter] :
       std::map<std::string, std::string>{{"gavel", "objective"}, {"pollux", "seed"}}) {
    api::SchedulingPolicySpec spec{.policy = policy, .parameters = {{parameter, 1}}};
    EXPECT_TRUE(policy_of(Config{}, spec).ok());
    spec.parameters[parameter] = 1.5;
    const auto refused = policy_of(Config{}, spec);
    ASSERT_FALSE(refused.ok()) << policy;
    EXPECT_NE(refused.error().what().find("spec.parameters." + parameter +
                                          " is 1.5, but must be a whole number from 0 to "),
              std::string::npos)
        << refused.error().what();
  }
}

TEST(Policy, OneIsTheDefaultEverywhere) {
  EXPECT_EQ(api::SchedulingPolicySpec{}.policy, sched::kDefaultPolicy);
  EXPECT_EQ(policy_of(Config{}).plan.policy, sched::kDefaultPolicy);
}

TEST(Policy, StatusSaysWhatIsInForceOrWhyNot) {
  const Policy flags = policy_of(Config{});
  api::SchedulingPolicy object;
  object.meta.name = "default";
  object.meta.generation = 4;
  const auto loaded = policy_status(object, flags, "", kLoadedAt);
  EXPECT_EQ(loaded.active, "rubato");
  EXPECT_EQ(loaded.observed_generation, 4);
  EXPECT_TRUE(api::is_true(loaded.conditions, "Active"));
  EXPECT_EQ(api::find_condition(loaded.conditions, "Active")->reason, "Loaded");
  const auto refused = policy_status(object, flags, "spec.parameters.x is not known", kLoadedAt);
  const auto* condition = api::find_condition(refused.conditions, "Active");
  EXPECT_EQ(condition->status, api::ConditionStatus::kFalse);
  EXPECT_EQ(condition->reason, "Refused");
  EXPECT_NE(condition->message.find("In force stays rubato"), std::string::npos);
  EXPECT_EQ(refused.in_force, std::nullopt) << "the flags are";
  object.meta.name = "other";
  EXPECT_EQ(
      api::find_condition(policy_status(object, flags, "", kLoadedAt).conditions, "Active")->reason,
      "NotDefault");
}

TEST(Policy, WhatIsInForceOutlivesItsLeader) {
  Config flags;
  flags.min_gain = 0.5;
  api::SchedulingPolicySpec fifo{.policy = "fifo", .parameters = {{"maxLoad", 1.5}}};
  fifo.round_seconds = 3;
  const Policy loaded = policy_of(flags, fifo).value();
  api::SchedulingPolicy object;
  object.meta.name = "default";
  object.spec = fifo;
  object.status = policy_status(object, loaded, "", kLoadedAt);
  EXPECT_EQ(object.status.in_force, fifo);
  object.spec.policy = "gandiva";  // needs what workers cannot do
  object.status =
      policy_status(object, loaded, policy_of(flags, object.spec).error().what(), kLoadedAt);
  EXPECT_EQ(object.status.active, "fifo");
  const auto stored = api::decode<api::SchedulingPolicyStatus>(api::encode(object.status));
  EXPECT_EQ(policy_left(flags, stored.value()).value(), loaded);
  EXPECT_EQ(policy_left(flags, {}).error().code(), Code::kNotFound);
}

// A release may refuse what was in force under the one before: all else of it stays, and all of it
// is kept for a release that takes it.
TEST(Policy, WhatWasInForceStaysButForWhatThisReleaseRefuses) {
  const auto left_of = [](const api::SchedulingPolicySpec& spec) {
    return policy_left(Config{}, {.in_force = spec}).value();
  };
  api::SchedulingPolicySpec spec{.policy = "pollux",
                                 .parameters = {{"seed", 7.5}, {"older", 1}, {"maxLoad", 1.5}}};
  spec.round_seconds = 3;
  const Policy left = left_of(spec);
  EXPECT_EQ(left.plan.policy, "pollux");
  EXPECT_EQ(left.plan.parameters, (std::map<std::string, double>{{"seed", 7}}));
  EXPECT_EQ(left.plan.max_load, 1.5);
  EXPECT_EQ(left.round_interval, 3s);
  EXPECT_TRUE(sched::make_policy(left.plan.policy, left.plan.parameters).ok());
  for (const char* refused : {"parameters.seed is 7.5, but", "parameters.older is not known"})
    EXPECT_NE(left.not_taken.find(refused), std::string::npos) << left.not_taken;

  api::SchedulingPolicy object;
  object.meta.name = "default";
  object.spec = spec;
  const std::string why = policy_of(Config{}, spec).error().what();
  const auto status = policy_status(object, left, why, kLoadedAt);
  EXPECT_EQ(status.active, "pollux");
  EXPECT_EQ(status.in_force, spec);
  const std::string& message = api::find_condition(status.conditions, "Active")->message;
  EXPECT_NE(message.find("In force is pollux, seed 7"), std::string::npos) << message;
  EXPECT_NE(message.find("this release refuses: " + left.not_taken), std::string::npos) << message;

  // What is no count is not rounded to one: nobody wrote that.
  spec = {.policy = "pollux", .parameters = {{"restartSeconds", 100'000.5}, {"preempt", 0.5}}};
  EXPECT_TRUE(left_of(spec).plan.parameters.empty());
  EXPECT_EQ(left_of(spec).plan.preempt, policy_of(Config{}).plan.preempt);

  spec = {.policy = "newer", .parameters = {{"maxLoad", 1.5}, {"depth", 2}}};
  const Policy another = left_of(spec);
  EXPECT_EQ(another.plan.policy, sched::kDefaultPolicy);
  EXPECT_EQ(another.plan.max_load, 1.5);
  EXPECT_EQ(another.spec, spec);
  EXPECT_EQ(another.not_taken.find("spec.policy: there is no policy \"newer\"; there are "), 0u)
      << another.not_taken;

  spec = {.policy = "gandiva"};  // needs what workers cannot do
  EXPECT_EQ(left_of(spec).plan.policy, "gandiva");
  EXPECT_EQ(left_of(spec).not_taken, "");
}

}  // namespace
}  // namespace rubato::control
