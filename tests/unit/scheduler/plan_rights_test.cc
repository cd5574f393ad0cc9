// Who may have what of whom, and where: small problems in which a plan once gave too little, took
// too much, or never came to rest.
#include "scheduler/fix.h"
#include "scheduler/policy/registry.h"
#include "tests/unit/scheduler/small_clusters.h"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

Job of_pods(Gpus per_pod, Job job) {
  job.per_pod.gpus = per_pod;
  for (Held& held : job.held) held.gpus = per_pod;
  return job;
}

Job of_both_types(const std::string& id, Gpus min, Gpus max,
                  const std::vector<std::pair<NodeId, std::string>>& pods) {
  Job j = job(id, min, max);
  j.mix = j.started = true;
  for (const auto& [node, type] : pods)
    j.held.push_back({static_cast<std::int64_t>(j.held.size()), node, type, 1});
  return j;
}

const Action* action_on(const Plan& plan, const JobId& id) {
  const auto found = std::ranges::find(plan.actions, id, &Action::job);
  return found == plan.actions.end() ? nullptr : &*found;
}

std::int64_t starts_on(const ClusterState& state, const std::string& policy, const JobId& id) {
  const Plan plan = make_plan(state, {.policy = policy});
  const Action* action = action_on(plan, id);
  return action == nullptr ? 0 : std::ssize(action->add);
}

TEST(PlanRights, NodesThatAreSmallerThanAPodAreOfNoUse) {
  const ClusterState state =
      cluster({node("a1", 3, 3), node("a2", 3, 3), node("a3", 3, 3), node("b", 4, 4, "B")},
              {of_pods(4, job("waits", 4, 4))});
  for (const Descriptor& policy : all_policies())
    EXPECT_EQ(starts_on(state, policy.name, "waits"), 1) << policy.name;
}

// Four GPUs leave and are promised to the first; with those of the job that runs the second one
// would have eight, but not these.
TEST(PlanRights, WhatLeavesIsPromisedOnce) {
  Job left = job("left", 4, 4);
  for (std::int64_t i = 0; i < 4; ++i) left.held.push_back({i, "n", "A", 1, true});
  Job first = job("first", 4, 4);
  first.priority = 2;
  Job second = job("second", 8, 8);
  second.priority = 1;
  const Job runs = running("runs", 4, 4, {"n", "n", "n", "n"});
  ClusterState state = cluster({node("n", 8, 0)}, {left, runs, first, second});
  for (const char* policy : {"rubato", "fifo", "marginalThroughput"}) {
    const Plan plan = make_plan(state, {.policy = policy});
    EXPECT_EQ(action_on(plan, "runs"), nullptr) << policy;
    EXPECT_EQ(told(state, plan, "first").reason, "WaitingForRelease") << policy;
  }
  state.jobs.erase(state.jobs.begin() + 2);
  const Plan plan = make_plan(state, {.policy = "marginalThroughput"});
  ASSERT_NE(action_on(plan, "runs"), nullptr);
  EXPECT_EQ(action_on(plan, "runs")->kind, ActionKind::kPreempt);
}

// Its queue has room for GPUs of a type whose nodes are full of pods of others, and none for those
// that another job of it holds: what that one gives makes room in the queue, too.
TEST(PlanRights, WhatJobsOfItsQueueGiveCountsWithinLimitsOfTypes) {
  Job holds = running("holds", 1, 4, {"b", "b", "b", "b"});
  for (Held& held : holds.held) held.gpu_type = "B";
  ClusterState state =
      cluster({node("a", 4, 0), node("b", 4, 0, "B")}, {holds, job("waits", 2, 2)});
  for (const char* type : {"A", "B"}) state.queues["default"].quotas[type].limit = 4;
  const Plan shrunk = make_plan(state, {.policy = "marginalThroughput"});
  ASSERT_NE(action_on(shrunk, "holds"), nullptr);
  EXPECT_EQ(action_on(shrunk, "holds")->kind, ActionKind::kShrink);
  EXPECT_EQ(action_on(shrunk, "holds")->remove.size(), 2u);
  state.jobs[0].min = 4;
  state.jobs[1].priority = 1;
  const Plan stopped = make_plan(state, {.policy = "marginalThroughput"});
  ASSERT_NE(action_on(stopped, "holds"), nullptr);
  EXPECT_EQ(action_on(stopped, "holds")->kind, ActionKind::kPreempt);
}

TEST(PlanRights, WhatPodsOfOthersHoldIsNotThere) {
  const ClusterState state =
      cluster({node("full", 8, 0), node("free", 8, 8, "B")}, {job("waits", 2, 4)});
  for (const Descriptor& policy : all_policies())
    EXPECT_GE(starts_on(state, policy.name, "waits"), 2) << policy.name;
}

// On A, where it is twice as fast, there is room for its minimum, not for the size it starts with.
TEST(PlanRights, AJobDoesNotMoveToWhereItWouldNotStart) {
  Job one = of_pods(2, job("one", 4, 12));
  one.one_node = true;
  one.measured = {{"A", 4, 100}, {"B", 4, 50}};
  ClusterState state = cluster({node("a1", 5, 5), node("a2", 1, 1), node("b", 16, 16, "B")}, {one});
  const Plan first = make_plan(state, {.policy = "rubato"});
  const Action* start = action_on(first, "one");
  ASSERT_NE(start, nullptr);
  Job& runs = state.jobs[0];
  runs.started = true;
  for (const Placement& pod : start->add) {
    runs.held.push_back(
        {static_cast<std::int64_t>(runs.held.size()), pod.node, pod.gpu_type, pod.gpus});
    for (Node& node : state.nodes)
      if (node.id == pod.node) node.free -= runs.per_pod;
  }
  EXPECT_TRUE(make_plan(state, {.policy = "rubato"}).actions.empty());
}

TEST(PlanRights, GrowthThatIsBorrowedIsGivenBackUnderEveryPolicy) {
  ClusterState state = cluster({node("n1", 4, 0)},
                               {in_queue("other", running("large", 1, 4, {"n1", "n1", "n1", "n1"})),
                                in_queue("own", job("waits", 2, 2))});
  state.jobs[0].priority = 5;
  state.queues["other"] = {.name = "other"};
  state.queues["own"] = {.name = "own"};
  state.queues["own"].quotas["*"].guaranteed = 3;
  for (const Descriptor& policy : all_policies()) {
    const Plan plan = make_plan(state, {.policy = policy.name});
    const Action* gives = action_on(plan, "large");
    ASSERT_NE(gives, nullptr) << policy.name;
    EXPECT_GE(std::ssize(gives->remove), 2) << policy.name;
  }
}

TEST(PlanRights, ARequiredDomainHoldsUnderEveryPolicy) {
  Job one = of_pods(4, job("one", 4, 8));
  one.topology = Topology{"rack", true};
  ClusterState state = cluster({node("n1", 4, 4), node("n2", 4, 4), node("n3", 4, 4)}, {one});
  state.levels = {"rack"};
  for (Node& node : state.nodes) node.domains["rack"] = node.id == "n1" ? "a" : "b";
  for (const Descriptor& policy : all_policies()) {
    const Plan plan = make_plan(state, {.policy = policy.name});
    const Action* start = action_on(plan, "one");
    ASSERT_NE(start, nullptr) << policy.name;
    const auto in_a = std::ranges::count(start->add, "n1", &Placement::node);
    EXPECT_TRUE(in_a == 0 || in_a == std::ssize(start->add)) << policy.name;
  }
}

// It gives its B; that is no room for A in the quota of its queue.
TEST(PlanRights, AMixedJobGivesBackWhatItGives) {
  Job wants = in_queue("r", job("wants", 4, 4));
  wants.allow = {"B"};
  wants.priority = 1;
  Job grows = in_queue("q", job("grows", 2, 8));
  grows.allow = {"A"};
  ClusterState state = cluster(
      {node("a", 8, 7), node("b", 4, 0, "B")},
      {in_queue("q", of_both_types("mixed", 1, 5,
                                   {{"a", "A"}, {"b", "B"}, {"b", "B"}, {"b", "B"}, {"b", "B"}})),
       wants, grows});
  state.queues["q"] = {.name = "q"};
  state.queues["q"].quotas["A"].limit = 4;
  state.queues["r"] = {.name = "r"};
  for (const char* policy : {"marginalThroughput", "srtf", "edf"})
    EXPECT_EQ(starts_on(state, policy, "grows"), 3) << policy;
}

TEST(PlanRights, OfAMixedJobEachTypeIsGuaranteedForItself) {
  Job wants = in_queue("r", job("wants", 4, 4));
  wants.allow = {"A"};
  for (const bool b_first : {true, false}) {
    std::vector<std::pair<NodeId, std::string>> pods(4, {"a", "A"});
    pods.insert(b_first ? pods.begin() : pods.end(), 2, {"b", "B"});
    ClusterState state = cluster({node("a", 4, 0), node("b", 4, 2, "B")},
                                 {in_queue("q", of_both_types("mixed", 2, 6, pods)), wants});
    state.queues["q"] = {.name = "q"};
    state.queues["q"].quotas["B"].guaranteed = 4;
    state.queues["r"] = {.name = "r"};
    state.queues["r"].quotas["A"].guaranteed = 4;
    const Plan plan = make_plan(state, {});
    const Action* gives = action_on(plan, "mixed");
    ASSERT_NE(gives, nullptr) << b_first;
    EXPECT_EQ(gives->kind, ActionKind::kShrink) << b_first;
    EXPECT_EQ(std::ssize(gives->remove), 4) << b_first;
  }
}

TEST(PlanRights, WhoIsStoppedIsToldToWait) {
  Job high = in_queue("q", of_pods(4, job("high", 4, 4)));
  high.priority = 2;
  ClusterState state =
      cluster({node("n1", 4, 0)}, {in_queue("q", of_pods(4, running("low", 4, 4, {"n1"}))), high});
  state.queues["q"] = {.name = "q"};
  state.queues["q"].quotas["*"].guaranteed = 4;
  for (const Descriptor& policy : all_policies()) {
    const Plan plan = make_plan(state, {.policy = policy.name});
    const Action* stops = action_on(plan, "low");
    if (stops == nullptr) continue;
    EXPECT_EQ(told(state, plan, "low").outcome, Outcome::kNotNow) << policy.name;
  }
}

TEST(PlanRights, WhoseGpusDoNotHelpKeepsThem) {
  Job wants = of_pods(4, job("wants", 4, 4));
  wants.priority = 1;
  Job stops = of_pods(4, running("stops", 4, 4, {"n2"}));
  stops.queued_at = 3;
  const ClusterState state =
      cluster({node("n1", 4, 0), node("n2", 4, 0)},
              {running("keeps", 3, 4, {"n1", "n1", "n1", "n1"}), stops, wants});
  for (const char* policy : {"marginalThroughput", "srtf", "tiresias"}) {
    const Plan plan = make_plan(state, {.policy = policy});
    EXPECT_EQ(action_on(plan, "keeps"), nullptr) << policy;
    EXPECT_NE(action_on(plan, "stops"), nullptr) << policy;
  }
}

// No node has its memory: nothing that another one gives is of use to it.
TEST(PlanRights, NobodyGivesGpusToAJobThatCannotUseThem) {
  Job large = job("large", 1, 1);
  large.per_pod.memory = Bytes{1} << 40;
  Job elastic = running("elastic", 1, 2, {"n1", "n2"});
  elastic.measured = {{"A", 1, 100}, {"A", 2, 30}};
  const ClusterState state = cluster({node("n1", 1, 0), node("n2", 1, 0)}, {elastic, large});
  for (const Descriptor& policy : all_policies()) {
    if (policy.name == "sia") continue;  // it takes back what makes a job slower
    for (const double gain : {-1.0, 0.01}) {
      const Plan plan = make_plan(state, {.policy = policy.name, .min_relative_gain = gain});
      EXPECT_EQ(action_on(plan, "elastic"), nullptr) << policy.name << " " << gain;
    }
  }
}

TEST(PlanRights, AQueueAboveItsLimitGivesBackWhatElasticJobsHaveBeyondTheirMinimum) {
  ClusterState state = cluster({node("n1", 8, 2)}, {running("first", 2, 3, {"n1", "n1", "n1"}),
                                                    running("last", 1, 3, {"n1", "n1", "n1"})});
  state.jobs[1].queued_at = 5;
  for (const Descriptor& policy : all_policies()) {
    state.queues["default"].quotas["*"].limit = 4;
    Plan plan = make_plan(state, {.policy = policy.name});
    Gpus given = 0;
    for (const Action& action : plan.actions) {
      EXPECT_EQ(action.kind, ActionKind::kShrink) << policy.name;
      given += std::ssize(action.remove);
    }
    EXPECT_GE(given, 2) << policy.name;
    EXPECT_LE(given, 3) << policy.name << ": the policy may have one grow later";
    state.queues["default"].quotas["*"].limit = 0;
    plan = make_plan(state, {.policy = policy.name});
    given = 0;
    for (const Action& action : plan.actions) given += std::ssize(action.remove);
    EXPECT_EQ(given, 3) << policy.name << ": nobody is stopped";
  }
}
// What "narrow" waits for is of type A, and "wide" may have either: it leaves A to it.
TEST(PlanRights, WhoHasAChoiceOfTypesLeavesThoseThatOthersAreBoundTo) {
  Job wide = job("wide", 3, 3);
  Job narrow = job("narrow", 3, 3);
  wide.per_pod.gpus = narrow.per_pod.gpus = 3;
  wide.priority = 1;
  narrow.allow = {"A"};
  const ClusterState state =
      cluster({node("n1", 3, 3, "A"), node("n2", 3, 3, "B")}, {narrow, wide});
  const Plan plan = make_plan(state, {.policy = "srsf"});
  ASSERT_EQ(plan.actions.size(), 2u);
  for (const Action& action : plan.actions)
    EXPECT_EQ(action.add.at(0).gpu_type, action.job == "wide" ? "B" : "A");
  const auto type_of_wide = [&](const Job& other) {
    ClusterState with = state;
    with.jobs[0] = other;
    with.queues["closed"] = {.name = "closed", .closed = true};
    return make_plan(with, {.policy = "srsf"}).actions.at(0).add.at(0).gpu_type;
  };
  Job never = narrow;
  never.min = never.max = 6;
  EXPECT_EQ(type_of_wide(never), "A") << "it would leave that to nobody";
  Job kept_out = narrow;
  kept_out.queue = "closed";
  EXPECT_EQ(type_of_wide(kept_out), "A");
  kept_out.queue = narrow.queue;
  kept_out.not_admitted = "not yet";
  EXPECT_EQ(type_of_wide(kept_out), "A");
}

TEST(PlanRights, AMinimumThatIsNoAllowedSizeIsRoundedUp) {
  Job one = job("one", 3, 8);
  one.shape = Shape::kPowersOfTwo;
  const ClusterState state = cluster({node("n1", 8, 8)}, {one});
  for (const Descriptor& policy : all_policies())
    EXPECT_GE(starts_on(state, policy.name, "one"), 4) << policy.name;
}

TEST(PlanRights, WhatIsToBeGuaranteedWhereThereIsNoNodeIsNamed) {
  ClusterState state = cluster({}, {job("one", 8, 8)});
  state.queues["default"].borrowing = false;
  const Fix fix = fix_of(state, state.jobs[0]);
  const auto raised = std::ranges::find_if(
      fix, [](const Change& c) { return std::holds_alternative<RaiseGuarantee>(c); });
  ASSERT_NE(raised, fix.end());
  EXPECT_EQ(std::get<RaiseGuarantee>(*raised).gpu_type, "*");
}

}  // namespace
}  // namespace rubato::sched
