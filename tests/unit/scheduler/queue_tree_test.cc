// Queues that are parts of queues: limits and guarantees of parents.
#include "scheduler/model/queue_tree.h"

#include "scheduler/fix.h"
#include "scheduler/model/quota.h"
#include "scheduler/policy/registry.h"
#include "tests/unit/scheduler/small_clusters.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

Queues tree(const std::vector<std::pair<std::string, std::string>>& queues) {
  Queues all;
  for (const auto& [name, parent] : queues) {
    all[name].name = name;
    all[name].parent = parent;
  }
  return all;
}

std::string why_parentless(const Queues& queues, const std::string& name) {
  return why_no_parent(queues, queues.at(name));
}

TEST(QueueTree, AParentThatCannotBeOneDoesNotCount) {
  const Queues queues = tree({{"top", ""},
                              {"part", "top"},
                              {"lost", "nowhere"},
                              {"self", "self"},
                              {"a", "b"},
                              {"b", "a"},
                              {"under-a", "a"}});
  EXPECT_EQ(why_parentless(queues, "top"), "");
  EXPECT_EQ(why_parentless(queues, "part"), "");
  EXPECT_EQ(why_parentless(queues, "lost"), "there is no queue \"nowhere\"");
  EXPECT_EQ(why_parentless(queues, "self"), "\"self\" is a part of this queue");
  EXPECT_EQ(why_parentless(queues, "a"), "\"b\" is a part of this queue");
  EXPECT_NE(why_parentless(queues, "under-a"), "") << "there is no end above it";
  EXPECT_EQ(with_parents(queues, "part").size(), 2u);
  EXPECT_EQ(with_parents(queues, "a").size(), 1u);
}

TEST(QueueTree, HasAsManyLevelsAsAreNamed) {
  std::vector<std::pair<std::string, std::string>> chain;
  for (std::size_t i = 0; i < kQueueLevelsMost + 2; ++i)
    chain.emplace_back(std::to_string(i), i == 0 ? "" : std::to_string(i - 1));
  const Queues queues = tree(chain);
  EXPECT_EQ(why_parentless(queues, std::to_string(kQueueLevelsMost - 1)), "");
  EXPECT_EQ(with_parents(queues, std::to_string(kQueueLevelsMost - 1)).size(), kQueueLevelsMost);
  EXPECT_EQ(why_parentless(queues, std::to_string(kQueueLevelsMost)),
            "it would be on a level below the 8th, which is the last");
}

TEST(QueueTree, QueuesOfOneUserHaveALevelBelowTheLast) {
  std::vector<std::pair<std::string, std::string>> chain;
  for (std::size_t i = 0; i < kQueueLevelsMost + 2; ++i)
    chain.emplace_back(std::to_string(i), i == 0 ? "" : std::to_string(i - 1));
  Queues queues = tree(chain);
  for (auto& [name, queue] : queues) queue.of_one_user = true;
  EXPECT_EQ(why_parentless(queues, std::to_string(kQueueLevelsMost)), "");
  EXPECT_NE(why_parentless(queues, std::to_string(kQueueLevelsMost + 1)), "");
}

// A company with two teams, on four GPUs of one type, and a queue beside it.
ClusterState company(std::vector<Job> jobs, Gpus free = 4) {
  ClusterState state = cluster({node("n1", 4, free)}, std::move(jobs));
  for (auto& [name, queue] : tree({{"company", ""}, {"a", "company"}, {"b", "company"}}))
    state.queues[name] = queue;
  return state;
}

Job of(const std::string& queue, Job job) {
  job.queue = queue;
  return job;
}

TEST(QueueTree, TheBookCountsPartsAtTheirParents) {
  ClusterState state = company({});
  state.queues["company"].quotas["*"].limit = 6;
  state.queues["a"].quotas["A"].limit = 4;
  state.queues["b"].quotas["*"].guaranteed = 3;
  const Problem problem(state);
  QuotaBook book(problem);
  const QueueIndex a = problem.queue_named("a"), b = problem.queue_named("b");
  const QueueIndex whole = problem.queue_named("company");
  const TypeIndex type = problem.type_named("A");
  EXPECT_TRUE(book.is_bounded(b)) << "by its parent";
  EXPECT_EQ(book.room(a, type), 4);
  EXPECT_EQ(book.room(b, type), 6);
  book.take(a, type, 4);
  EXPECT_EQ(book.used(whole), 4);
  EXPECT_EQ(book.room(b, type), 2);
  EXPECT_EQ(book.tightest(b), whole);
  EXPECT_TRUE(book.is_guaranteed(b, type, 3));
  EXPECT_FALSE(book.is_guaranteed(a, type, 0));
  EXPECT_TRUE(book.is_helped_by(b, a, type, 3));
  EXPECT_FALSE(book.is_helped_by(b, a, type, 2)) << "it has room enough";
  EXPECT_FALSE(book.is_helped_by(b, problem.queue_named("default"), type, 3));
}

TEST(QueueTree, BooksOfOneVersionHoldTheSame) {
  const ClusterState state = company({});
  const Problem problem(state);
  const QueueIndex a = problem.queue_named("a"), b = problem.queue_named("b");
  const QueueIndex whole = problem.queue_named("company");
  const TypeIndex type = problem.type_named("A");
  QuotaBook book(problem);
  const QuotaBook before = book;
  QuotaBook other = book;
  EXPECT_EQ(book.version(), other.version());
  book.take(a, type, 1);
  other.take(b, type, 1);
  EXPECT_NE(book.version(), before.version());
  EXPECT_NE(book.version(), other.version());
  book = before;
  EXPECT_EQ(book.version(), before.version());
  book.take(a, type, 2);
  EXPECT_NE(book.version(), other.version()) << "what was undone counts, too";
  EXPECT_TRUE(book.is_part_of(a, a));
  EXPECT_TRUE(book.is_part_of(a, whole));
  EXPECT_FALSE(book.is_part_of(whole, a));
  EXPECT_FALSE(book.is_part_of(a, b));
}

TEST(QueueTree, AParentThatMayNotBorrowHoldsAtLeastWhatItsPartsAreGuaranteed) {
  ClusterState state = company({});
  state.queues["company"].borrowing = false;
  state.queues["company"].quotas["A"].guaranteed = 1;
  state.queues["a"].quotas["A"].guaranteed = 2;
  state.queues["b"].quotas["A"].guaranteed = 1;
  state.queues["b"].quotas["B"].guaranteed = 2;
  const Problem problem(state);
  const QuotaBook book(problem);
  EXPECT_EQ(book.most(problem.queue_named("a"), problem.type_named("A")), 3);
  EXPECT_EQ(problem.quotas_of(problem.queue_named("company")).at("B").guaranteed, 2);
  EXPECT_EQ(problem.quotas_of(problem.queue_named("a")).size(), 1u);
}

// Each policy that may stop somebody, and each that may not, keeps the parent's limit.
TEST(QueueTree, PartsTogetherKeepTheLimitOfTheirParent) {
  for (const Descriptor& policy : all_policies()) {
    PolicyConfig config;
    config.policy = policy.name;
    ClusterState state = company({of("a", job("one", 1, 4)), of("b", job("two", 1, 4))});
    state.queues["company"].quotas["*"].limit = 3;
    Gpus given = 0;
    for (const Action& action : make_plan(state, config).actions) given += std::ssize(action.add);
    EXPECT_GE(given, 2) << policy.name;
    EXPECT_LE(given, 3) << policy.name;
  }
}

TEST(QueueTree, WhoWaitsForAParentsLimitIsTold) {
  ClusterState state = company({of("a", running("has", 2, 2, {"n1", "n1"})),
                                of("b", job("waits", 2, 2)), of("b", job("large", 4, 4))},
                               2);
  state.queues["company"].quotas["*"].limit = 3;
  EXPECT_EQ(told(state, "waits").reason, "QueueLimit");
  EXPECT_EQ(told(state, "waits").message,
            "queue \"company\", which has \"b\" as a part, holds 2 GPUs and may take 1 more that "
            "this job can use; needed: 2");
  EXPECT_EQ(told(state, "large").outcome, Outcome::kNever);
  EXPECT_EQ(told(state, "large").message,
            "needs 4 GPUs; queue \"company\", which has \"b\" as a part, lets it have 3 at most: "
            "lower spec.gpus.min to 3, or let the queue hold more");
  state.queues["b"].quotas["*"].limit = 0;
  EXPECT_EQ(to_text(fix_of(state, state.jobs[2])),
            "raise the limit of queue \"b\" to 4 GPUs and raise the limit of queue \"company\" to "
            "4 GPUs");
}

const Action* action_of(const Plan& plan, const JobId& id) {
  const auto found = std::ranges::find(plan.actions, id, &Action::job);
  return found == plan.actions.end() ? nullptr : &*found;
}

// Two users of one company, as limits per namespace make them.
ClusterState users(std::vector<Job> jobs, Gpus free = 4) {
  ClusterState state = company(std::move(jobs), free);
  for (const char* name : {"a", "b"}) {
    state.queues[name].of_one_user = true;
    state.queues[name].quotas["*"].limit = 2;
  }
  return state;
}

TEST(QueueTree, AUserNeverHoldsMoreThanItsLimit) {
  for (const Descriptor& policy : all_policies()) {
    const ClusterState state =
        users({of("a", job("one", 1, 4)), of("a", job("two", 1, 4)), of("b", job("other", 1, 4))});
    std::map<std::string, Gpus> given;
    for (const Action& action : make_plan(state, {.policy = policy.name}).actions)
      given[action.job == "other" ? "b" : "a"] += std::ssize(action.add);
    EXPECT_LE(given["a"], 2) << policy.name;
    EXPECT_GE(given["a"], 1) << policy.name;
    EXPECT_LE(given["b"], 2) << policy.name;
    EXPECT_GE(given["b"], 1) << policy.name;
  }
}

// What a queue says of preemption holds between its users; its parts are not one queue.
TEST(QueueTree, PrioritiesCountBetweenTheUsersOfAQueue) {
  Job important = of("b", job("important", 1, 1));
  important.priority = 5;
  ClusterState state = users({of("a", running("has", 1, 1, {"n1"})), important}, 0);
  state.queues["company"].preempts = Preempts::kOwnQueue;
  state.queues["company"].quotas["*"].limit = 1;
  const Plan plan = make_plan(state, {});
  ASSERT_NE(action_of(plan, "has"), nullptr);
  EXPECT_EQ(action_of(plan, "has")->kind, ActionKind::kPreempt);
  for (const char* name : {"a", "b"}) {
    state.queues[name].of_one_user = false;
    state.queues[name].preempts = Preempts::kOwnQueue;
  }
  EXPECT_EQ(action_of(make_plan(state, {}), "has"), nullptr);
  for (const char* name : {"a", "b"}) state.queues[name].of_one_user = true;
  state.queues["company"].preempts = Preempts::kNobody;
  EXPECT_EQ(action_of(make_plan(state, {}), "has"), nullptr);
}

TEST(QueueTree, AClosedQueueIsClosedToEachUser) {
  ClusterState state = users({of("a", job("one", 1, 1))});
  state.queues["company"].closed = true;
  EXPECT_EQ(told(state, "one").reason, "QueueClosed");
}

// Three users of a queue do not make three queues of it.
TEST(QueueTree, UnderDrfTheUsersOfAQueueHaveOneShare) {
  ClusterState state =
      users({of("a", job("one", 1, 1)), of("b", job("two", 1, 1)),
             of("default", job("beside", 1, 1)), of("default", job("beside2", 1, 1))},
            4);
  const auto order_of = [&] {
    const Problem problem(state);
    std::vector<JobId> ids;
    const auto drf = make_policy("drf", {});
    const Targets targets = drf.value()->decide(problem);
    for (const JobIndex j : targets.order) ids.push_back(problem.job(j).id);
    return ids;
  };
  EXPECT_EQ(order_of(), (std::vector<JobId>{"one", "beside", "two", "beside2"}));
  for (const char* name : {"a", "b"}) state.queues[name].of_one_user = false;
  EXPECT_EQ(order_of(), (std::vector<JobId>{"one", "two", "beside", "beside2"}));
}

// The nodes have room; the company has none. What "has" holds beyond its minimum goes to a team
// mate of its company, never to the queue beside it.
TEST(QueueTree, PartsGiveEachOtherWhatTheirParentMayHold) {
  ClusterState state =
      company({of("a", running("has", 1, 3, {"n1", "n1", "n1"})), of("b", job("new", 1, 1))}, 1);
  state.queues["company"].quotas["*"].limit = 3;
  const Plan plan = make_plan(state, {});
  ASSERT_NE(action_of(plan, "has"), nullptr);
  EXPECT_EQ(action_of(plan, "has")->kind, ActionKind::kShrink);
  EXPECT_EQ(told(state, "new").reason, "WaitingForRelease");
  state.jobs[1].queue = "default";
  const Plan beside = make_plan(state, {});
  EXPECT_EQ(action_of(beside, "has"), nullptr) << "it starts on the one that is free";
  EXPECT_NE(action_of(beside, "new"), nullptr);
}

// The limit of the company lets "large" have its GPUs if "has" gives back two; no node does. Then
// all is as it was: the team of "has" is full.
TEST(QueueTree, WhatWasTriedInVainIsGivenBackToWhoseItWas) {
  Job large = of("b", job("large", 3, 3));
  large.one_node = true;
  Job late = of("a", job("late", 1, 1));
  late.queued_at = 9;
  ClusterState state = cluster({node("n1", 3, 0), node("n2", 2, 2)},
                               {of("a", running("has", 1, 3, {"n1", "n1", "n1"})),
                                of("b", running("mate", 1, 1, {"n0"})), large, late});
  state.nodes.push_back(node("n0", 1, 0));
  for (auto& [name, queue] : tree({{"company", ""}, {"a", "company"}, {"b", "company"}}))
    state.queues[name] = queue;
  state.queues["company"].quotas["*"].limit = 5;
  state.queues["a"].quotas["*"].limit = 3;
  const Plan plan = make_plan(state, {});
  EXPECT_EQ(action_of(plan, "late"), nullptr);
  EXPECT_EQ(told(state, "late").message, "needs 1 more GPU, 0 are free for it; waits for has");
}

// Both the team and its company are full: what a team mate gives back makes room in both.
TEST(QueueTree, WhoseTeamIsFullTakesNothingFromAnotherTeam) {
  for (const char* last : {"mate", "other"}) {
    Job mate = of("b", running("mate", 1, 2, {"n1", "n1"}));
    Job other = of("a", running("other", 1, 3, {"n1", "n1", "n1"}));
    (last == mate.name ? mate : other).queued_at = 9;
    Job wants = of("b", job("new", 1, 1));
    wants.queued_at = 5;
    ClusterState state = company({mate, other, wants});
    state.nodes = {node("n1", 8, 3)};
    state.queues["company"].quotas["*"].limit = 5;
    state.queues["b"].quotas["*"].limit = 2;
    const Plan plan = make_plan(state, {});
    EXPECT_NE(action_of(plan, "mate"), nullptr) << last;
    EXPECT_EQ(action_of(plan, "other"), nullptr) << last;
    EXPECT_EQ(told(state, "new").reason, "WaitingForRelease") << last;
  }
}

TEST(QueueTree, APartTakesBackItsGuaranteeFromAnother) {
  ClusterState state = company(
      {of("a", running("borrows", 3, 3, {"n1", "n1", "n1"})), of("b", job("mine", 2, 2))}, 1);
  state.queues["company"].quotas["*"] = {.guaranteed = 4, .limit = 4};
  EXPECT_TRUE(make_plan(state, {}).actions.empty())
      << "the guarantee of both gives neither a right against the other";
  state.queues["b"].quotas["*"].guaranteed = 2;
  const Plan plan = make_plan(state, {});
  ASSERT_NE(action_of(plan, "borrows"), nullptr);
  EXPECT_EQ(to_text(action_of(plan, "borrows")->cause),
            "preempted by mine (queue \"b\" takes back what it is guaranteed)");
  state.queues["a"].quotas["*"].guaranteed = 3;
  EXPECT_TRUE(make_plan(state, {}).actions.empty()) << "it is inside its own";
}

TEST(QueueTree, AParentsGuaranteeProtectsItsPartsFromOthers) {
  ClusterState state =
      company({running("beside", 2, 2, {"n1", "n1"}), of("a", running("has", 2, 2, {"n1", "n1"})),
               of("b", job("mine", 2, 2))},
              0);
  state.queues["company"].quotas["*"].guaranteed = 4;
  Plan plan = make_plan(state, {});
  EXPECT_EQ(action_of(plan, "has"), nullptr);
  ASSERT_NE(action_of(plan, "beside"), nullptr);
  EXPECT_EQ(to_text(action_of(plan, "beside")->cause),
            "preempted by mine (queue \"company\" takes back what it is guaranteed)");
  // Nobody from outside takes it for a higher priority; a team mate may.
  state.jobs[2].queue = "default";
  state.jobs[2].priority = 5;
  state.jobs[0].priority = 9;
  EXPECT_TRUE(make_plan(state, {}).actions.empty());
  state.jobs[2].queue = "b";
  plan = make_plan(state, {});
  ASSERT_NE(action_of(plan, "has"), nullptr);
  EXPECT_EQ(action_of(plan, "beside"), nullptr);
}

}  // namespace
}  // namespace rubato::sched
