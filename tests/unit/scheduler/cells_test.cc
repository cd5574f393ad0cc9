// HiveD's cells: the invariant and the placement against brute force on small forests, and what
// they change in plans. docs/cells.md is what people read of it.
#include "scheduler/placement/cells.h"

#include "scheduler/fix.h"
#include "scheduler/model/sizes.h"
#include "scheduler/snapshot/snapshot.h"
#include "tests/unit/scheduler/drawn_clusters.h"

#include <functional>
#include <map>
#include <set>

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

std::map<std::string, std::string> cell_refusals(const ClusterState& state) {
  return make_plan(state, {}).refused_cells;
}

// Racks of nodes, all of one type.
ClusterState racks(const std::vector<int>& nodes_in, Gpus gpus = 8) {
  ClusterState state = cluster({}, {});
  state.levels = {"rack"};
  for (std::size_t r = 0; r < nodes_in.size(); ++r)
    for (int i = 0; i < nodes_in[r]; ++i) {
      state.nodes.push_back(node("r" + std::to_string(r) + "n" + std::to_string(i), gpus, gpus));
      state.nodes.back().domains["rack"] = std::to_string(r);
    }
  return state;
}

void add_queue(ClusterState& state, const std::string& name, std::vector<CellQuota> cells) {
  state.queues[name] = {.name = name, .cells = std::move(cells)};
}

Job one_node_job(const std::string& id, const std::string& queue, Gpus gpus) {
  Job j = job(id, gpus, gpus);
  j.queue = queue;
  j.one_node = true;
  return j;
}

const PolicyConfig kFifo{.policy = "fifoBackfill"};

// Two queues with half of two nodes each. One has two jobs of half a node: with quotas they may be
// on both nodes, and the other's job of a whole node waits for as long as they run, inside its
// guarantee. With cells they share one.
ClusterState two_halves(bool cells) {
  ClusterState state = racks({2});
  for (const char* name : {"a", "b"}) {
    add_queue(state, name, {});
    if (cells)
      state.queues[name].cells = {{"A", "node", 1}};
    else
      state.queues[name].quotas["A"].guaranteed = 8;
  }
  return state;
}

TEST(Cells, AJobDoesNotWaitForWhatOthersHaveInSplinters) {
  for (const bool cells : {false, true}) {
    ClusterState state = two_halves(cells);
    // A job of nobody holds half of the first node while both come.
    state.jobs = {one_node_job("x", "default", 6)};
    obey(make_plan(state, kFifo), state);
    state.jobs.push_back(one_node_job("a1", "a", 4));
    state.jobs.push_back(one_node_job("a2", "a", 2));
    obey(make_plan(state, kFifo), state);
    state = without(state, "x");
    state.jobs.push_back(one_node_job("a3", "a", 2));
    obey(make_plan(state, kFifo), state);
    state.jobs.push_back(one_node_job("b1", "b", 8));
    const Plan plan = make_plan(state, kFifo);
    EXPECT_EQ(verdict_of(plan, state, "b1").outcome == Outcome::kPlaced, cells)
        << to_text(plan, state);
  }
}

TEST(Cells, WhoIsInNoneLeavesForThem) {
  ClusterState state = two_halves(true);
  state.jobs = {one_node_job("x", "default", 5), one_node_job("y", "default", 5)};
  obey(make_plan(state, kFifo), state);
  state.jobs.push_back(one_node_job("a1", "a", 8));
  state.jobs.push_back(one_node_job("b1", "b", 4));
  const Plan plan = make_plan(state, kFifo);
  EXPECT_EQ(verdict_of(plan, state, "a1").reason, Reason::kWaitingForRelease);
  EXPECT_EQ(verdict_of(plan, state, "b1").reason, Reason::kWaitingForRelease);
  std::set<JobId> stopped;
  for (const Action& action : plan.actions) {
    const char* by = action.job == "x" ? "a" : "b";
    EXPECT_EQ(to_text(action.cause), std::string("preempted by ") + by + "1 (queue \"" + by +
                                         "\" takes back what it is guaranteed)");
    stopped.insert(action.job);
  }
  EXPECT_EQ(stopped, (std::set<JobId>{"x", "y"}));
}

// A job that ran in none when its queue had none left is inside once it has: the oldest first.
TEST(Cells, WhoIsWhereItsQueueHasSomeLeftIsInside) {
  ClusterState state = two_halves(true);
  state.jobs = {one_node_job("a1", "a", 8), one_node_job("a2", "a", 4)};
  obey(make_plan(state, kFifo), state);
  EXPECT_EQ(state.jobs[0].held.at(0).cell, "node");
  EXPECT_EQ(state.jobs[1].held.at(0).cell, "");
  Job own = one_node_job("b1", "b", 8);
  state.jobs.push_back(own);
  ASSERT_EQ(verdict_of(make_plan(state, kFifo), state, "b1").waits_for,
            std::vector<std::string>{"a2"});
  // Its node is free now, and takes b1; a2 stays.
  state = without(state, "a1");
  const Plan plan = make_plan(state, kFifo);
  EXPECT_EQ(verdict_of(plan, state, "b1").outcome, Outcome::kPlaced);
  EXPECT_TRUE(Cells(Problem(state)).is_inside(JobIndex{0}, 0));
}

// Four nodes, two of which are cells of queue "a"; a job of it is inside them.
ClusterState low_inside() {
  ClusterState state = racks({4}, 4);
  add_queue(state, "a", {{"A", "node", 2}});
  state.jobs = {job("low", 3, 3)};
  state.jobs[0].queue = "a";
  obey(make_plan(state, {}), state);
  return state;
}

// One that needs more than the cells would come after it again, whatever its priority is.
TEST(Cells, WhoIsInsideIsNotStoppedForAJobThatCannotBe) {
  ClusterState state = low_inside();
  state.jobs.push_back(job("high", 15, 15));
  state.jobs[1].queue = "a";
  state.jobs[1].priority = 1;
  const Plan plan = make_plan(state, {});
  EXPECT_TRUE(plan.actions.empty()) << to_text(plan, state);
  EXPECT_EQ(verdict_of(plan, state, "high").reason, Reason::kInsufficientGpus);
}

TEST(Cells, WhoIsInsideLeavesForAJobThatTakesItsPlace) {
  ClusterState state = low_inside();
  state.jobs.push_back(job("x", 8, 8));
  state.jobs[1].priority = 2;
  obey(make_plan(state, {}), state);
  state.jobs.push_back(job("high", 8, 8));
  state.jobs[2].queue = "a";
  state.jobs[2].priority = 1;
  EXPECT_EQ(verdict_of(make_plan(state, {}), state, "high").waits_for,
            std::vector<std::string>{"low"});
  const ClusterState end = at_rest(state, {}, 5);
  EXPECT_EQ(end.jobs[1].held.size(), 8u);
  EXPECT_EQ(end.jobs[2].held.size(), 8u);
  for (const Held& held : end.jobs[2].held) EXPECT_EQ(held.cell, "node");
}

// Its parent is full, and so are its own cells: what another part gives back is of no use to it.
TEST(Cells, NobodyInAParentLeavesForAJobThatHasNoRoomInItsCells) {
  ClusterState state = racks({2});
  add_queue(state, "a", {{"A", "node", 1}});
  state.queues["a"].borrowing = false;
  state.queues["whole"] = {.name = "whole"};
  state.queues["whole"].quotas["*"].limit = 12;
  for (const char* part : {"a", "default"}) state.queues[part].parent = "whole";
  state.jobs = {one_node_job("a1", "a", 8), one_node_job("x", "default", 4)};
  state.jobs[0].priority = 1;
  obey(make_plan(state, {}), state);
  ASSERT_EQ(state.jobs[1].held.size(), 4u);
  state.jobs.push_back(one_node_job("a2", "a", 4));
  state.jobs[2].priority = 1;
  const Plan plan = make_plan(state, {});
  EXPECT_TRUE(plan.actions.empty()) << to_text(plan, state);
  EXPECT_EQ(verdict_of(plan, state, "a2").reason, Reason::kQueueLimit);
}

// Two nodes of eight with four free each, and queues "a", which has one of them as a cell and a job
// that wants all of it, and "b": parts of one that may hold so many.
ClusterState parts_that_may_hold(Gpus gpus) {
  ClusterState state = cluster({node("n0", 8, 4), node("n1", 8, 4)},
                               {running("x", 4, 4, std::vector<NodeId>(4, "n0")),
                                running("y", 4, 4, std::vector<NodeId>(4, "n1"))});
  add_queue(state, "whole", {});
  state.queues["whole"].quotas["A"].limit = gpus;
  add_queue(state, "a", {{"A", "node", 1}});
  add_queue(state, "b", {});
  state.queues["a"].parent = state.queues["b"].parent = "whole";
  state.jobs.push_back(one_node_job("a1", "a", 8));
  state.jobs.back().queued_at = 1;
  return state;
}

// What the parent may still take is kept for a job that waits for its cells: who comes later must
// not take it.
TEST(Cells, AParentsLimitIsKeptForAJobThatWaitsForItsCells) {
  ClusterState state = parts_that_may_hold(8);
  state.jobs.push_back(job("b1", 4, 4));
  state.jobs.back().queue = "b";
  state.jobs.back().queued_at = 2;

  Plan plan = make_plan(state, kFifo);
  EXPECT_EQ(verdict_of(plan, state, "a1").reason, Reason::kWaitingForRelease)
      << to_text(plan, state);
  EXPECT_EQ(verdict_of(plan, state, "b1").reason, Reason::kQueueLimit) << to_text(plan, state);
  EXPECT_EQ(told(state, plan, "b1").message,
            "queue \"whole\", which has \"b\" as a part, holds 0 GPUs, has promised 8 GPUs to jobs "
            "that come first, and may take 0 more that this job can use; needed: 4");
  ASSERT_EQ(plan.actions.size(), 1U);
  EXPECT_EQ(plan.actions[0].kind, ActionKind::kPreempt);

  // While pods are leaving, and once they have left.
  obey(plan, state);
  EXPECT_EQ(verdict_of(make_plan(state, kFifo), state, "b1").reason, Reason::kQueueLimit);
  state = at_rest(state, kFifo, 10);
  EXPECT_EQ(effective_gpus(*std::ranges::find(state.jobs, "a1", &Job::id)), 8);
  EXPECT_EQ(verdict_of(make_plan(state, kFifo), state, "b1").reason, Reason::kQueueLimit);
}

TEST(Cells, WhatIsKeptForAJobIsNotHeldByItsQueue) {
  ClusterState state = parts_that_may_hold(16);
  state.queues["a"].borrowing = false;
  state.jobs.push_back(one_node_job("a2", "a", 4));
  state.jobs.back().queued_at = 2;
  const Plan plan = make_plan(state, kFifo);
  EXPECT_EQ(verdict_of(plan, state, "a1").reason, Reason::kWaitingForRelease);
  EXPECT_EQ(told(state, plan, "a2").message,
            "needs 4 GPUs on one node; the cells of queue \"a\" have no room for it (its jobs hold "
            "0 GPUs), and it may not borrow: it starts when one of them ends");
}

TEST(Cells, WhoMayNotBorrowIsToldSo) {
  ClusterState state = two_halves(true);
  state.queues["a"].borrowing = false;
  state.jobs = {one_node_job("a1", "a", 8), one_node_job("a2", "a", 4), job("a3", 9, 9)};
  state.jobs[2].queue = "a";
  const Plan plan = make_plan(state, kFifo);
  EXPECT_EQ(
      told(state, plan, "a2").message,
      "needs 4 GPUs on one node; the cells of queue \"a\" have no room for it (its jobs hold 8 "
      "GPUs), and it may not borrow: it starts when one of them ends");
  EXPECT_EQ(told(state, plan, "a3").message,
            "needs 9 GPUs; the cells of queue \"a\" have 8 at most, and it may not borrow: lower "
            "spec.gpus.min to 8, or give it more cells, or let it borrow");
  EXPECT_EQ(told(state, plan, "a3").outcome, Outcome::kNever);
  EXPECT_EQ(fix_of(state, state.jobs[2]), Fix{LowerMin{8}});
  state.jobs[2].min = 8;
  EXPECT_NE(told(state, make_plan(state, kFifo), "a3").outcome, Outcome::kNever);
}

// Two nodes of one type, and the cells of queue "a", which has nothing else; its job wants five.
ClusterState small_cells(Gpus first, Gpus second, std::int64_t cells) {
  ClusterState state = cluster({node("n0", first, first), node("n1", second, second)}, {});
  add_queue(state, "a", {{"A", "node", cells}});
  state.queues["a"].borrowing = false;
  state.jobs = {job("a1", 5, 9)};
  state.jobs[0].queue = "a";
  return state;
}

TEST(Cells, WhatHelpsAJobThatTheyCanNeverHoldIsWhatNodesAndLimitsLeaveOfThem) {
  ClusterState state = small_cells(2, 1, 2);  // the smaller one is a bad one, and of the queue, too
  EXPECT_EQ(told(state, "a1").message,
            "needs 5 GPUs; the nodes it may use have 3 in all: lower spec.gpus.min to 3, or add "
            "nodes");
  EXPECT_EQ(fix_of(state, state.jobs[0]), Fix{LowerMin{3}});
  state.jobs[0].min = 3;
  EXPECT_EQ(told(state, "a1").outcome, Outcome::kPlaced);
  state = small_cells(4, 4, 1);
  EXPECT_EQ(fix_of(state, state.jobs[0]), Fix{LowerMin{4}});
  state.queues["a"].quotas["*"].limit = 2;
  EXPECT_EQ(told(state, "a1").reason, "QueueLimit");
  EXPECT_EQ(fix_of(state, state.jobs[0]), Fix{LowerMin{2}});
  // There are none, and no fewer GPUs help.
  state = small_cells(4, 4, 3);
  EXPECT_EQ(told(state, "a1").outcome, Outcome::kNever);
  EXPECT_TRUE(fix_of(state, state.jobs[0]).empty());
}

TEST(Cells, WhatTheyCanNeverHoldIsSaidBeforeWhatPasses) {
  ClusterState state = small_cells(4, 4, 1);
  state.jobs[0].avoid = {"n0", "n1"};
  EXPECT_EQ(told(state, "a1").outcome, Outcome::kNever);
  EXPECT_EQ(told(state, "a1").reason, "CellsFull");
  state.jobs[0].min = 4;
  EXPECT_EQ(told(state, "a1").reason, "EveryNodeAvoided");
}

TEST(Cells, NobodyWaitsBehindAJobThatTheyCanNeverHold) {
  ClusterState state = two_halves(true);
  state.queues["a"].borrowing = false;
  state.queues["c"] = {.name = "c"};
  state.jobs = {job("a1", 9, 9), job("c1", 1, 1)};
  state.jobs[0].queue = "a";
  state.jobs[1].queue = "c";
  const Plan plan = make_plan(state, {.policy = "fifo"});
  EXPECT_EQ(told(state, plan, "a1").outcome, Outcome::kNever);
  EXPECT_EQ(verdict_of(plan, state, "c1").outcome, Outcome::kPlaced);
}

TEST(Cells, OthersKeepAwayFromWhatWillBeNeededFirst) {
  ClusterState state = racks({2, 2});
  add_queue(state, "a", {{"A", "rack", 1}});
  state.jobs = {job("x", 3, 3), job("y", 3, 3), job("z", 9, 9)};
  obey(make_plan(state, kFifo), state);
  std::set<std::string> used;
  for (const JobId id : {"x", "y"})
    for (const Held& held : std::ranges::find(state.jobs, id, &Job::id)->held)
      used.insert(held.node.substr(0, 2));
  EXPECT_EQ(used.size(), 1u);
}

TEST(Cells, ABadNodeCountsAgainstTheLastQueue) {
  ClusterState state = two_halves(true);
  state.queues["b"].created = 1;
  state.nodes[0].schedulable = false;
  state.queues["a"].borrowing = state.queues["b"].borrowing = false;
  state.jobs = {one_node_job("b1", "b", 4), one_node_job("a1", "a", 8)};
  state.jobs[1].queued_at = 5;
  const Plan plan = make_plan(state, kFifo);
  EXPECT_EQ(verdict_of(plan, state, "a1").outcome, Outcome::kPlaced);
  EXPECT_EQ(verdict_of(plan, state, "b1").reason, Reason::kCellsFull);
}

TEST(Cells, AreRefusedWhereTheyCannotBeHad) {
  ClusterState state = racks({2, 2, 1});
  add_queue(state, "a", {{"A", "rack", 2}});
  add_queue(state, "b", {{"A", "node", 1}});
  add_queue(state, "c", {{"A", "node", 1}});
  add_queue(state, "d", {{"A", "zone", 1}});
  add_queue(state, "e", {{"T4", "node", 1}});
  state.queues["b"].created = 2;
  state.queues["c"].created = 1;
  const auto refused = cell_refusals(state);
  EXPECT_EQ(
      refused,
      (std::map<std::string, std::string>{
          {"b",
           "with what older queues have there are too few cells of level node and GPU type A; "
           "ask for fewer, or add nodes"},
          {"d", "this installation knows no level \"zone\" (it knows node, rack)"},
          {"e", "there is no node of GPU type \"T4\""}}));
  const json::Value plan = to_json(make_plan(state, {}), state);
  EXPECT_EQ(plan["refusedCells"]["e"].string_or(""), refused.at("e"));
}

// Brute force. A forest of racks; each claim of each queue is given a cell of its own, in all ways.
struct Brute {
  std::vector<std::set<int>> racks;  // numbers of free, open nodes, of whole racks only
  std::set<int> nodes;               // free and open, of all

  bool can_have(int of_racks, int of_nodes) const {
    std::function<bool(std::size_t, int, std::set<int>)> choose = [&](std::size_t from, int left,
                                                                      const std::set<int>& free) {
      if (left == 0) return std::ssize(free) >= of_nodes;
      for (std::size_t r = from; r < racks.size(); ++r) {
        if (!std::ranges::includes(free, racks[r])) continue;
        std::set<int> rest = free;
        for (const int n : racks[r]) rest.erase(n);
        if (choose(r + 1, left - 1, rest)) return true;
      }
      return false;
    };
    return choose(0, of_racks, nodes);
  }
  Brute without(const std::set<int>& taken) const {
    Brute rest;
    for (const int n : nodes)
      if (!taken.contains(n)) rest.nodes.insert(n);
    for (const std::set<int>& rack : racks)
      if (std::ranges::includes(rest.nodes, rack)) rest.racks.push_back(rack);
    return rest;
  }
};

struct DrawnForest {
  ClusterState state;
  Brute all;
  std::map<std::string, std::pair<int, int>> claims;  // racks, nodes
};

DrawnForest drawn_forest(Rng& rng) {
  DrawnForest drawn;
  const int fan_out = 1 + static_cast<int>(rng.below(3));
  std::vector<int> sizes;
  for (std::uint64_t r = 0, count = 1 + rng.below(4); r < count; ++r) sizes.push_back(fan_out);
  drawn.state = racks(sizes, 2);
  int number = 0;
  for (const int size : sizes) {
    drawn.all.racks.emplace_back();
    for (int i = 0; i < size; ++i) {
      drawn.all.racks.back().insert(number);
      drawn.all.nodes.insert(number++);
    }
  }
  for (const char* name : {"a", "b"}) {
    const auto [r, n] =
        drawn.claims[name] = {static_cast<int>(rng.below(3)), static_cast<int>(rng.below(4))};
    add_queue(drawn.state, name, {});
    if (r > 0) drawn.state.queues[name].cells.push_back({"A", "rack", r});
    if (n > 0) drawn.state.queues[name].cells.push_back({"A", "node", n});
  }
  return drawn;
}

TEST(CellsReference, QueuesAreAdmittedWhereTheInvariantCanBeKept) {
  std::size_t refused = 0;
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    Rng rng(seed);
    const DrawnForest drawn = drawn_forest(rng);
    const auto refusals = cell_refusals(drawn.state);
    int of_racks = 0;
    int of_nodes = 0;
    for (const auto& [name, claim] : drawn.claims) {
      const bool fits = drawn.all.can_have(of_racks + claim.first, of_nodes + claim.second);
      ASSERT_EQ(refusals.contains(name), !fits) << "seed " << seed << ", queue " << name;
      if (!fits) ++refused;
      of_racks += fits ? claim.first : 0;
      of_nodes += fits ? claim.second : 0;
    }
  }
  EXPECT_GT(refused, 50u);
  EXPECT_LT(refused, 800u);
}

// Whether queue "a" may take nodes for so many pods of one GPU, two of which a node has, so that
// all claims that are left can be had: it takes some racks and some nodes of its own.
bool pods_can_be_placed(const DrawnForest& drawn, int pods) {
  const auto [own_racks, own_nodes] = drawn.claims.at("a");
  const auto [racks_b, nodes_b] = drawn.claims.at("b");
  std::function<bool(int, int, int, const Brute&)> go = [&](int racks_left, int nodes_left,
                                                            int rest, const Brute& free) {
    if (!free.can_have(racks_left + racks_b, nodes_left + nodes_b)) return false;
    if (rest <= 0) return true;
    if (racks_left > 0)
      for (const std::set<int>& rack : free.racks)
        if (go(racks_left - 1, nodes_left, rest - 2 * static_cast<int>(rack.size()),
               free.without(rack)))
          return true;
    if (nodes_left > 0)
      for (const int n : free.nodes)
        if (go(racks_left, nodes_left - 1, rest - 2, free.without({n}))) return true;
    return false;
  };
  return go(own_racks, own_nodes, pods, drawn.all);
}

TEST(CellsReference, APlacementIsFoundWheneverThereIsOne) {
  int placed = 0;
  int none = 0;
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    Rng rng(seed);
    DrawnForest drawn = drawn_forest(rng);
    if (drawn.claims["a"] == std::pair(0, 0) || !cell_refusals(drawn.state).empty()) continue;
    const int pods = 1 + static_cast<int>(rng.below(12));
    Problem problem(drawn.state);
    Cells cells(problem);
    Table<NodeIndex, Gpus> costs(drawn.state.nodes.size(), 0);
    for (Gpus& cost : costs) cost = static_cast<Gpus>(rng.below(3));
    const Table<NodeIndex, std::vector<std::size_t>> inside(costs.size());
    const auto places = cells.place({.queue = problem.queue_named("a"),
                                     .type = TypeIndex{0},
                                     .pods = pods,
                                     .fits = Table<NodeIndex, std::int64_t>(costs.size(), 2),
                                     .costs = &costs,
                                     .inside = &inside});
    ASSERT_EQ(places.has_value(), pods_can_be_placed(drawn, pods)) << "seed " << seed;
    ++(places ? placed : none);
    if (!places) continue;
    ASSERT_EQ(std::ssize(*places), pods);
    // What is bound and what is left of all claims is had at once.
    auto [racks_left, nodes_left] = drawn.claims["a"];
    std::set<int> taken;
    std::set<std::size_t> own_racks;
    std::map<NodeIndex, int> on;
    for (const auto& [node, level] : *places) {
      ASSERT_LE(++on[node], 2) << "seed " << seed;
      if (level == "rack") {
        std::size_t r = 0;
        while (!drawn.all.racks[r].contains(static_cast<int>(node.value))) ++r;
        if (!own_racks.insert(r).second) continue;
        --racks_left;
        taken.insert(drawn.all.racks[r].begin(), drawn.all.racks[r].end());
      } else if (on[node] == 1) {
        --nodes_left;
        taken.insert(static_cast<int>(node.value));
      }
    }
    ASSERT_GE(racks_left, 0);
    ASSERT_GE(nodes_left, 0);
    ASSERT_TRUE(drawn.all.without(taken).can_have(racks_left + drawn.claims["b"].first,
                                                  nodes_left + drawn.claims["b"].second))
        << "seed " << seed;
  }
  EXPECT_GT(placed, 100);
  EXPECT_GT(none, 30);
}

}  // namespace
}  // namespace rubato::sched
