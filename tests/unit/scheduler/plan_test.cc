#include "scheduler/plan.h"

#include "common/rng.h"
#include "scheduler/model/sizes.h"
#include "scheduler/policy/registry.h"
#include "tests/sentences.h"
#include "tests/unit/scheduler/small_clusters.h"

#include <limits>
#include <set>

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

TEST(Plan, StartsAtTheMinimumAndGrowsIntoWhatIsFree) {
  const Plan plan = make_plan(cluster({node("n1", 2, 2), node("n2", 2, 2)}, {job("a", 2, 3)}), {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].kind, ActionKind::kStart);
  EXPECT_EQ(plan.actions[0].add.size(), 3u);
  EXPECT_EQ(plan.verdicts.at(0).outcome, Outcome::kPlaced);
}

TEST(Plan, GangIsAllOrNothing) {
  const Plan plan = make_plan(cluster({node("n1", 4, 1), node("n2", 4, 1)}, {job("a", 3, 4)}), {});
  EXPECT_TRUE(plan.actions.empty());
  EXPECT_EQ(plan.verdicts.at(0).outcome, Outcome::kNotNow);
  EXPECT_EQ(plan.verdicts.at(0).reason, Reason::kInsufficientGpus);
}

TEST(Plan, NeverWhenTheClusterIsTooSmall) {
  const Plan plan = make_plan(cluster({node("n1", 2, 2)}, {job("a", 3, 4)}), {});
  EXPECT_EQ(plan.verdicts.at(0).outcome, Outcome::kNever);
}

TEST(Plan, OneTypeUnlessMixed) {
  std::vector<Node> nodes = {node("n1", 1, 1, "A"), node("n2", 1, 1, "B")};
  EXPECT_TRUE(make_plan(cluster(nodes, {job("a", 2, 2)}), {}).actions.empty());
  Job mixed = job("a", 2, 2);
  mixed.mix = true;
  EXPECT_EQ(make_plan(cluster(nodes, {mixed}), {}).actions.size(), 1u);
}

TEST(Plan, PriorityThenAge) {
  Job old = job("old", 2, 2);
  old.queued_at = 1;
  Job young = job("young", 2, 2);
  young.queued_at = 2;
  Plan plan = make_plan(cluster({node("n1", 2, 2)}, {young, old}), {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].job, "old");
  young.priority = 10;
  plan = make_plan(cluster({node("n1", 2, 2)}, {young, old}), {});
  EXPECT_EQ(plan.actions[0].job, "young");
}

TEST(Plan, ElasticSurplusMakesRoomForAMinimum) {
  const auto state = cluster({node("n1", 2, 0), node("n2", 2, 0)},
                             {running("a", 2, 4, {"n1", "n1", "n2", "n2"}), job("b", 2, 2)});
  const Plan plan = make_plan(state, {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].kind, ActionKind::kShrink);
  EXPECT_EQ(plan.actions[0].remove, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(plan.verdicts.at(1).reason, Reason::kWaitingForRelease);
}

TEST(Plan, EveryJobThatMakesRoomIsNamedOnce) {
  const auto state = cluster(
      {node("n1", 3, 0), node("n2", 2, 0)},
      {running("aa", 1, 3, {"n1", "n1", "n1"}), running("a", 1, 2, {"n2", "n2"}), job("b", 3, 3)});
  EXPECT_TRUE(told(state, "b").message.ends_with("; waits for aa, a")) << told(state, "b").message;
}

TEST(Plan, WhatIsReservedIsNotGrownInto) {
  // b waits for a's leaving pod; c, elastic, must not take the GPU that is already free.
  Job a = running("a", 1, 2, {"n1", "n1"});
  a.held[1].leaving = true;
  a.settled = false;
  Job b = job("b", 2, 2);
  b.queued_at = 1;
  const auto state =
      cluster({node("n1", 3, 1), node("n2", 1, 0)}, {a, b, running("c", 1, 2, {"n2"})});
  const Plan plan = make_plan(state, {});
  EXPECT_TRUE(plan.actions.empty());
}

TEST(Plan, LostPodsAreWrittenOffAndReplaced) {
  Job a = running("a", 2, 3, {"n1", "n2", "n3"});
  a.held[2].lost = true;
  Node dead = node("n3", 1, 0);
  dead.schedulable = false;
  Plan plan = make_plan(cluster({node("n1", 1, 0), node("n2", 1, 0), dead}, {a}), {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].kind, ActionKind::kRepair);
  EXPECT_EQ(plan.actions[0].remove, (std::vector<std::int64_t>{2}));
  EXPECT_TRUE(plan.actions[0].add.empty());
  plan = make_plan(cluster({node("n1", 1, 0), node("n2", 1, 0), dead, node("n4", 1, 1)}, {a}), {});
  EXPECT_EQ(plan.actions[0].add.size(), 1u);
}

TEST(Plan, AJobThatAvoidsEveryNodeThatItMayUseIsToldSo) {
  Job a = job("a", 1, 2);
  a.avoid = {"n1", "n2"};
  const ClusterState two = cluster({node("n1", 2, 2), node("n2", 2, 2), node("n3", 0, 0)}, {a});
  EXPECT_EQ(told(two, "a").reason, "EveryNodeAvoided");
  EXPECT_EQ(told(two, "a").outcome, Outcome::kNotNow);
  // One that is full or cordoned may do yet.
  Node other = node("n4", 2, 0);
  other.schedulable = false;
  const ClusterState three = cluster({node("n1", 2, 2), node("n2", 2, 2), other}, {a});
  EXPECT_EQ(told(three, "a").reason, "NodesUnavailable");
}

// Soak seed 66666: it was said that jobs held what was on a cordoned node.
TEST(Plan, AJobThatTheNodesWhichTakePodsCannotHoldIsToldSo) {
  Node cordoned = node("n2", 2, 2);
  cordoned.schedulable = false;
  const std::vector<Node> nodes{node("n1", 2, 2), cordoned};
  const Told waits = told(cluster(nodes, {job("a", 3, 3)}), "a");
  EXPECT_EQ(waits.outcome, Outcome::kNotNow);
  EXPECT_EQ(waits.reason, "NodesUnavailable");
  EXPECT_EQ(waits.message,
            "needs 3 GPUs; the nodes it may use that take pods now have 2 in all: others are not "
            "ready, cordoned or tainted");
  EXPECT_EQ(told(cluster(nodes, {job("a", 2, 3)}), "a").reason, "Placed");
  // It holds up nobody, and what it holds there counts.
  const ClusterState both = cluster(nodes, {job("a", 3, 3), job("b", 1, 1)});
  EXPECT_EQ(told(both, make_plan(both, {.policy = "fifo"}), "b").reason, "Placed");
  EXPECT_EQ(told(cluster(nodes, {running("a", 3, 3, {"n2", "n2"})}), "a").reason, "Placed");
}

TEST(Plan, AJobThatTheNodesItDoesNotAvoidCannotHoldIsToldSo) {
  Job a = job("a", 3, 3);
  const auto verdict = [&](const std::vector<Node>& nodes) {
    return told(cluster(nodes, {a, running("b", 1, 1, {"n1"})}), "a");
  };
  const std::vector<Node> nodes{node("n1", 2, 1), node("n2", 2, 2)};
  EXPECT_EQ(verdict(nodes).reason, "Placed");
  a.avoid = {"n2"};
  EXPECT_EQ(verdict(nodes).reason, "NodesAvoided");
  EXPECT_EQ(verdict(nodes).outcome, Outcome::kNotNow);
  EXPECT_NE(verdict(nodes).message.find("have 2 in all (for now none on n2"), std::string::npos);
  // They could, but for others.
  EXPECT_EQ(verdict({node("n1", 4, 3), node("n2", 2, 2)}).reason, "Placed");
  EXPECT_EQ(verdict({node("n1", 3, 2), node("n2", 2, 2)}).reason, "InsufficientGPUs");
  // What it holds on one counts.
  a = running("a", 3, 3, {"n2", "n2"});
  a.avoid = {"n2"};
  EXPECT_EQ(verdict({node("n1", 2, 1), node("n2", 2, 0)}).reason, "Placed");
  a.held[1].lost = true;
  EXPECT_EQ(verdict({node("n1", 2, 1), node("n2", 2, 0)}).reason, "InsufficientGPUs");
  a.held[0].lost = true;
  EXPECT_EQ(verdict({node("n1", 2, 1), node("n2", 2, 0)}).reason, "NodesAvoided");
}

TEST(Plan, ANodeThatIsAvoidedGetsNothingNew) {
  Job a = running("a", 1, 2, {"n1", "n2"});
  a.held[1].lost = a.held[1].unstarted = true;
  a.avoid = {"n2"};
  Plan plan = make_plan(cluster({node("n1", 1, 0), node("n2", 2, 1)}, {a}), {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].kind, ActionKind::kRepair);
  EXPECT_EQ(to_text(plan.actions[0].cause), "pod 1 on node n2 did not start in time");
  EXPECT_TRUE(plan.actions[0].add.empty());
  // One below its minimum says so, and is not told that it can never run.
  a.min = 2;
  const Told said = told(cluster({node("n1", 1, 0), node("n2", 2, 1)}, {a}), "a");
  EXPECT_EQ(said.outcome, Outcome::kNotNow);
  EXPECT_NE(said.message.find("for now none on n2"), std::string::npos);
  a.avoid.clear();
  plan = make_plan(cluster({node("n1", 1, 0), node("n2", 2, 1)}, {a}), {});
  EXPECT_EQ(plan.actions[0].add, (std::vector<Placement>{{"n2", "A", 1}}));
}

TEST(Plan, LoweredMaximumShrinks) {
  const Plan plan =
      make_plan(cluster({node("n1", 4, 0)}, {running("a", 1, 2, {"n1", "n1", "n1", "n1"})}), {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].remove, (std::vector<std::int64_t>{2, 3}));
}

TEST(Plan, QueueLimitHolds) {
  auto state = cluster({node("n1", 8, 8)}, {job("a", 2, 8)});
  state.queues["default"].quotas["*"].limit = 3;
  const Plan plan = make_plan(state, {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].add.size(), 3u);
}

TEST(Plan, WhatLeaversHoldCountsAgainstTheirQueue) {
  auto state = cluster({node("n1", 8, 8)}, {job("a", 2, 8)});
  state.queues["default"].quotas["*"].limit = 3;
  state.queues["default"].held_by_leavers["A"] = 2;
  const Plan plan = make_plan(state, {});
  EXPECT_TRUE(plan.actions.empty());
  EXPECT_EQ(plan.verdicts.at(0).reason, Reason::kQueueLimit);
}

TEST(PlanQuota, LimitsHoldPerTypeAndTogether) {
  auto state = cluster({node("n1", 4, 4, "A"), node("n2", 4, 4, "B")}, {job("a", 2, 8)});
  state.queues["default"].quotas["A"].limit = 1;  // more of A are free, but it may not have them
  Plan plan = make_plan(state, {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].add.size(), 4u);
  for (const Placement& placement : plan.actions[0].add) EXPECT_EQ(placement.gpu_type, "B");
  state.queues["default"].quotas["*"].limit = 1;
  plan = make_plan(state, {});
  EXPECT_TRUE(plan.actions.empty());
  EXPECT_EQ(plan.verdicts.at(0).reason, Reason::kQueueLimit);
}

TEST(PlanQuota, WithoutBorrowingTheGuaranteeIsTheLimit) {
  auto state = cluster({node("n1", 4, 4)}, {job("a", 2, 4)});
  state.queues["default"].quotas["A"].guaranteed = 3;
  EXPECT_EQ(make_plan(state, {}).actions.at(0).add.size(), 4u);
  state.queues["default"].borrowing = false;
  EXPECT_EQ(make_plan(state, {}).actions.at(0).add.size(), 3u);
}

TEST(PlanQuota, TheGuaranteedComeFirstWhateverTheirPriority) {
  Job important = job("important", 2, 2);
  important.priority = 100;
  auto state = cluster({node("n1", 2, 2)}, {important, in_queue("team", job("ours", 2, 2))});
  state.queues["team"].quotas["A"].guaranteed = 2;
  const Plan plan = make_plan(state, {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].job, "ours");
}

TEST(PlanQuota, WhatIsBorrowedIsTakenBack) {
  auto state = cluster({node("n1", 2, 0)},
                       {running("guest", 2, 2, {"n1", "n1"}), in_queue("team", job("ours", 2, 2))});
  EXPECT_TRUE(make_plan(state, {}).actions.empty());  // equal priority
  state.queues["team"].quotas["*"].guaranteed = 2;
  const Plan plan = make_plan(state, {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].kind, ActionKind::kPreempt);
  EXPECT_EQ(plan.actions[0].job, "guest");
  EXPECT_NE(to_text(plan.actions[0].cause).find("guaranteed"), std::string::npos);
}

TEST(PlanQuota, NobodyTakesWhatIsGuaranteed) {
  Job important = job("important", 2, 2);
  important.priority = 100;
  auto state = cluster({node("n1", 2, 0)},
                       {in_queue("team", running("ours", 1, 2, {"n1", "n1"})), important});
  EXPECT_EQ(make_plan(state, {}).actions.size(), 1u);
  state.queues["team"].quotas["A"].guaranteed = 2;
  EXPECT_TRUE(make_plan(state, {}).actions.empty());
}

// What a queue holds beyond its guarantee may be taken, and not a GPU more.
TEST(PlanQuota, TakingBackEndsAtTheGuaranteeOfTheOther) {
  auto state = cluster({node("n1", 4, 0)}, {in_queue("guest", running("first", 1, 1, {"n1"})),
                                            in_queue("guest", running("second", 1, 1, {"n1"})),
                                            in_queue("guest", running("third", 1, 2, {"n1", "n1"})),
                                            in_queue("team", job("ours", 3, 3))});
  state.queues["guest"].quotas["A"].guaranteed = 2;
  state.queues["team"].quotas["A"].guaranteed = 3;
  EXPECT_TRUE(make_plan(state, {}).actions.empty());  // two may be taken, three are needed
  state.jobs[3].min = state.jobs[3].max = 2;
  Gpus taken = 0;
  for (const Action& action : make_plan(state, {}).actions)
    taken += static_cast<Gpus>(action.remove.size());
  EXPECT_EQ(taken, 2);
}

Gpus released(const ClusterState& state, const Plan& plan) {
  Gpus sum = 0;
  for (const Action& action : plan.actions) {
    const auto job = std::find_if(state.jobs.begin(), state.jobs.end(),
                                  [&](const Job& j) { return j.id == action.job; });
    for (const Held& h : job->held) {
      const bool removed =
          std::find(action.remove.begin(), action.remove.end(), h.ordinal) != action.remove.end();
      if (removed && !h.lost && !h.leaving) sum += h.gpus;
    }
  }
  return sum;
}

// Whoever takes more stays within what the queue may hold; who held too much before may go on.
void expect_limits(const ClusterState& state, const Plan& plan) {
  std::map<std::string, Gpus> held, added;
  for (const Job& j : state.jobs) {
    for (const Held& h : j.held) {
      if (h.lost || h.leaving) continue;
      held[h.gpu_type] += h.gpus;
      held["*"] += h.gpus;
    }
  }
  for (const Action& action : plan.actions) {
    for (const Placement& p : action.add) {
      added[p.gpu_type] += p.gpus;
      added["*"] += p.gpus;
    }
  }
  for (const auto& [type, quota] : state.queues.at("default").quotas) {
    if (quota.limit) {
      EXPECT_LE(added[type], std::max<Gpus>(0, *quota.limit - held[type]) + released(state, plan))
          << type;
    }
  }
}

ClusterState random_cluster(Rng& rng) {
  std::vector<Node> nodes;
  for (std::uint64_t i = 0; i < 1 + rng.below(6); ++i) {
    nodes.push_back(node("n" + std::to_string(i), 4, static_cast<Gpus>(rng.below(5)),
                         rng.chance(0.3) ? "B" : "A"));
    nodes.back().schedulable = !rng.chance(0.1);
  }
  std::vector<Job> jobs;
  for (std::uint64_t i = 0; i < rng.below(8); ++i) {
    const Gpus min = 1 + static_cast<Gpus>(rng.below(4));
    Job j = job("j" + std::to_string(i), min, min + static_cast<Gpus>(rng.below(5)));
    j.priority = static_cast<std::int64_t>(rng.below(3));
    j.queued_at = static_cast<double>(rng.below(10));
    if (rng.chance(0.5)) {
      j.started = true;
      const Node& where = nodes[rng.below(nodes.size())];
      for (Gpus g = 0; g < min; ++g) {
        j.held.push_back({g, where.id, where.gpu_type, 1, rng.chance(0.1), rng.chance(0.1)});
      }
    }
    jobs.push_back(std::move(j));
  }
  ClusterState state = cluster(nodes, jobs);
  if (rng.chance(0.5)) {
    state.queues["default"].quotas["*"].limit = static_cast<Gpus>(rng.below(12));
    state.queues["default"].quotas["A"].limit = static_cast<Gpus>(rng.below(6));
  }
  return state;
}

TEST(Plan, WhatIsDoneToAJobIsASentence) {
  EXPECT_EQ(to_text(ActionKind::kStart, 1), "starts with 1 GPU");
  EXPECT_EQ(to_text(ActionKind::kGrow, 4), "grows to 4 GPUs");
  EXPECT_EQ(to_text(ActionKind::kShrink, 1), "shrinks to 1 GPU");
  EXPECT_EQ(to_text(ActionKind::kRepair, 2), "goes on with 2 GPUs");
  EXPECT_EQ(to_text(ActionKind::kRepair, 0), "holds no GPUs any more");
  EXPECT_EQ(to_text(ActionKind::kPreempt, 0), "holds no GPUs any more");
}

// What policies look at beside priority and age.
void add_history(Rng& rng, ClusterState& state) {
  state.now_ms = 1'000'000;
  for (Job& j : state.jobs) {
    j.attained_gpu_ms = static_cast<GpuMs>(rng.below(10'000'000));
    if (!j.held.empty()) j.allocated_ms = static_cast<TimeMs>(rng.below(1'000'000));
    if (rng.chance(0.7))
      j.duration_ms = j.remaining_ms = static_cast<TimeMs>(rng.below(10'000'000));
    for (const Gpus n : {1, 2, 4, 8})
      if (rng.chance(0.3)) j.measured.push_back({"A", n, 1 + static_cast<double>(rng.below(1000))});
    if (rng.chance(0.5)) j.deadline_ms = static_cast<TimeMs>(rng.below(5'000'000));
  }
}

void expect_sound(const ClusterState& state, const Plan& plan) {
  expect_limits(state, plan);
  std::map<NodeId, Gpus> taken;
  std::int64_t highest = std::numeric_limits<std::int64_t>::min();
  for (std::size_t i = 0; i < state.jobs.size(); ++i)
    if (plan.verdicts[i].reason == Reason::kWaitingForRelease)
      highest = std::max(highest, state.jobs[i].priority);
  for (const Action& action : plan.actions) {
    const auto it = std::find_if(state.jobs.begin(), state.jobs.end(),
                                 [&](const Job& j) { return j.id == action.job; });
    Gpus after = effective_gpus(*it);
    std::set<std::string> types;
    for (const Placement& p : action.add) {
      taken[p.node] += p.gpus;
      after += p.gpus;
      types.insert(p.gpu_type);
    }
    for (const Held& held : it->held)
      if (!held.lost && !held.leaving &&
          std::ranges::find(action.remove, held.ordinal) != action.remove.end())
        after -= held.gpus;
    EXPECT_LE(types.size(), 1u);
    EXPECT_LE(after, std::max(it->max, effective_gpus(*it)));
    if (action.kind == ActionKind::kStart || action.kind == ActionKind::kShrink) {
      EXPECT_GE(after, it->min);
    }
    if (action.kind == ActionKind::kPreempt) {
      EXPECT_EQ(after, 0);
      EXPECT_LE(it->priority, highest) << "nobody waits for it";
    }
  }
  for (const Node& n : state.nodes) EXPECT_LE(taken[n.id], n.schedulable ? n.free.gpus : 0);
}

// Random clusters, under every policy: no node gets more than it has free, gangs are whole, limits
// and sizes hold, nobody is preempted for lower priority, every job has a verdict, and an equal
// state gives an equal plan.
TEST(PlanProperty, InvariantsOnRandomClusters) {
  for (const Descriptor& policy : all_policies()) {
    for (std::uint64_t seed = 1; seed <= 300; ++seed) {
      SCOPED_TRACE(policy.name + ", seed " + std::to_string(seed));
      Rng rng(seed);
      ClusterState state = random_cluster(rng);
      add_history(rng, state);
      const PolicyConfig config{.policy = policy.name};
      const Plan plan = make_plan(state, config);
      ASSERT_EQ(plan.verdicts.size(), state.jobs.size());
      expect_sound(state, plan);
      for (std::size_t i = 0; i < state.jobs.size(); ++i)
        EXPECT_EQ(wrong_number(explain(plan.verdicts[i], state.jobs[i]).message), "");
      for (const Action& action : plan.actions) EXPECT_EQ(wrong_number(to_text(action.cause)), "");
      EXPECT_EQ(make_plan(state, config), plan);
    }
  }
}

Job on_one_node(Job job) {
  job.one_node = true;
  job.narrowed = "claim \"data\" is for one node";
  return job;
}

std::set<NodeId> nodes_of(const Plan& plan) {
  std::set<NodeId> nodes;
  for (const Action& action : plan.actions)
    for (const Placement& placement : action.add) nodes.insert(placement.node);
  return nodes;
}

TEST(OneNode, AJobStartsAndGrowsOnTheSameNode) {
  // In one round: it starts with two on n2, the smallest that has them, and grows only there.
  const auto state = cluster({node("n1", 1, 1), node("n2", 3, 3), node("n3", 8, 8)},
                             {on_one_node(job("a", 2, 8))});
  const Plan plan = make_plan(state, {});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].add.size(), 3u);
  EXPECT_EQ(nodes_of(plan), (std::set<NodeId>{"n2"}));
}

TEST(OneNode, ARunningJobGrowsWhereItIsOrNot) {
  const Job a = on_one_node(running("a", 1, 4, {"n1"}));
  EXPECT_TRUE(make_plan(cluster({node("n1", 1, 0), node("n2", 4, 4)}, {a}), {}).actions.empty());
  EXPECT_EQ(nodes_of(make_plan(cluster({node("n1", 2, 1), node("n2", 4, 4)}, {a}), {})),
            (std::set<NodeId>{"n1"}));
}

TEST(OneNode, WhatNoNodeHoldsNeverFitsAndSaysWhy) {
  const auto state = cluster({node("n1", 2, 2), node("n2", 2, 2)}, {on_one_node(job("a", 3, 4))});
  const Told verdict = told(state, "a");
  EXPECT_EQ(verdict.outcome, Outcome::kNever);
  EXPECT_EQ(
      verdict.message,
      "needs 3 GPUs on one node; the largest node it may use has 2 (claim \"data\" is for one "
      "node): lower spec.gpus.min to 2, or add a larger one");
}

TEST(OneNode, FreeGpusOfSeveralNodesAreNotEnough) {
  const auto state = cluster({node("n1", 2, 1), node("n2", 2, 1)}, {on_one_node(job("a", 2, 2))});
  const Plan plan = make_plan(state, {});
  EXPECT_TRUE(plan.actions.empty());
  EXPECT_TRUE(told(state, plan, "a")
                  .message.starts_with("needs 2 more GPUs on one node, 1 is free for it (claim "
                                       "\"data\" is for one node); "));
}

TEST(Plan, ARefusalKeepsItsName) {
  Job a = job("a", 1, 1);
  a.refused = "its claim is not there";
  EXPECT_EQ(told(cluster({node("n1", 1, 1)}, {a}), "a").reason, "Refused");
  a.refused_as = "ClaimNotFound";
  EXPECT_EQ(told(cluster({node("n1", 1, 1)}, {a}), "a").reason, "ClaimNotFound");
}

}  // namespace
}  // namespace rubato::sched
