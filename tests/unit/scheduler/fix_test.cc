#include "scheduler/fix.h"

#include "scheduler/placement/cells.h"
#include "tests/unit/scheduler/drawn_clusters.h"

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

Job limited(Job job, Shape shape) {
  job.shape = shape;
  return job;
}

TEST(Fix, IsTheSmallestChange) {
  // 3 GPUs of A and 8 of B, and what would be needed.
  const ClusterState state = cluster({node("n1", 3, 3, "A"), node("n2", 8, 8, "B")}, {});
  const auto fix = [&](const Job& job) { return to_text(fix_of(state, job)); };
  EXPECT_EQ(fix(job("a", 8, 8)), "");
  EXPECT_EQ(fix(job("a", 9, 9)), "lower spec.gpus.min to 8");
  Job only_a = job("a", 4, 4);
  only_a.allow = {"A"};
  EXPECT_EQ(fix(only_a), "lower spec.gpus.min to 3");
  only_a.min = only_a.max = 8;  // five GPUs fewer, or one word
  EXPECT_EQ(fix(only_a), "allow GPU type \"B\"");
  Job powers = limited(job("a", 9, 16), Shape::kPowersOfTwo);
  EXPECT_EQ(fix(powers), "lower spec.gpus.min to 8");
  powers = limited(job("a", 3, 3), Shape::kPowersOfTwo);
  EXPECT_EQ(fix(powers), "lower spec.gpus.min to 2");
  powers = limited(job("a", 7, 7), Shape::kPowersOfTwo);
  EXPECT_EQ(fix(powers), "raise spec.gpus.max to 8");
  powers = limited(job("a", 6, 6), Shape::kPowersOfTwo);
  EXPECT_EQ(fix(powers), "set spec.gpus.shape to any");
  Job large_pods = job("a", 16, 16);
  large_pods.per_pod.gpus = 16;
  EXPECT_EQ(fix(large_pods), "lower spec.gpus.min to 8 and lower spec.gpus.perPod to 8");
  Job narrowed = job("a", 8, 8);
  narrowed.eligible = std::set<NodeId>{};
  EXPECT_EQ(fix(narrowed),
            "let it use more nodes (its selectors, tolerations and volumes leave it few)");
  Job elsewhere = job("a", 2, 2);
  elsewhere.allow = {"C"};
  EXPECT_EQ(fix(elsewhere), "allow GPU type \"A\"");
  EXPECT_EQ(to_text(fix_of(cluster({}, {}), job("a", 2, 2))), "add nodes with 2 more GPUs");
  elsewhere.one_node = true;
  EXPECT_EQ(to_text(fix_of(cluster({}, {}), elsewhere)), "add a node with 2 GPUs of type \"C\"");
}

TEST(Fix, OfWhatAQueueNeverLetsItHave) {
  ClusterState state = cluster({node("n1", 8, 8, "A"), node("n2", 8, 8, "B")}, {});
  Queue& queue = state.queues["default"];
  const auto fix = [&](const Job& job) { return to_text(fix_of(state, job)); };
  queue.quotas["*"].limit = 3;
  EXPECT_EQ(fix(job("a", 4, 4)), "lower spec.gpus.min to 3");
  EXPECT_EQ(fix(limited(job("a", 4, 4), Shape::kPowersOfTwo)),
            "raise the limit of queue \"default\" to 4 GPUs");
  queue.quotas["*"].limit = 0;
  EXPECT_EQ(fix(job("a", 4, 4)), "raise the limit of queue \"default\" to 4 GPUs");
  queue.quotas["*"].limit = 8;
  queue.quotas["A"].limit = 0;
  EXPECT_EQ(fix(job("a", 4, 4)), "");
  queue.quotas["B"].limit = 0;
  EXPECT_EQ(fix(job("a", 4, 4)), "raise the limit of queue \"default\" to 4 GPUs of type \"A\"");
  queue.borrowing = false;
  queue.quotas = {};
  EXPECT_EQ(fix(job("a", 1, 4)),
            "raise what queue \"default\" is guaranteed to 1 GPU of type \"A\"");
  queue.quotas["*"].guaranteed = 4;
  EXPECT_EQ(fix(job("a", 4, 4)), "");
  EXPECT_EQ(fix(job("a", 6, 6)), "lower spec.gpus.min to 4");
}

// As many jobs as nodes: to look at each node for each job would take minutes.
TEST(Fix, OfManyJobsIsFoundByWhatTheyAskFor) {
  constexpr int kMany = 20'000;
  ClusterState state;
  state.levels = {"rack"};
  state.queues["default"].name = "default";
  Plan plan;
  for (int i = 0; i < kMany; ++i) {
    state.nodes.push_back(node("n" + std::to_string(i), 8, 8, "A"));
    state.nodes.back().domains["rack"] = "r" + std::to_string(i / 4);
    Job& large = state.jobs.emplace_back(job("j" + std::to_string(i), 40, 40));
    large.topology = Topology{.level = "rack", .required = true};
    if (i % 2 == 1) large.eligible = {state.nodes.back().id};
    plan.verdicts.push_back({.outcome = Outcome::kNever});
  }
  state.jobs[6].min = 33;
  state.jobs[4].queue = "limited";
  state.queues["limited"].quotas["*"].limit = 5;
  plan.verdicts[2].outcome = Outcome::kNotNow;
  const std::vector<Fix> fixes = fixes_of(state, plan);
  ASSERT_EQ(fixes.size(), state.jobs.size());
  EXPECT_EQ(fixes[0], Fix{PreferTopology{}});
  EXPECT_EQ(fixes[1], Fix{LowerMin{8}});
  EXPECT_EQ(fixes[2], Fix{});
  EXPECT_EQ(fixes[4], Fix{LowerMin{5}});
  EXPECT_EQ(fixes[6], Fix{LowerMin{32}});
  EXPECT_EQ(fixes[kMany - 2], fixes[0]);
}

struct Apply {
  ClusterState& state;
  Job& job;
  void operator()(const LowerMin& c) const { job.min = c.to; }
  void operator()(const RaiseMax& c) const { job.max = c.to; }
  void operator()(const AnyShape&) const { job.shape = Shape::kAny; }
  void operator()(const LowerPerPod& c) const { job.per_pod.gpus = c.to; }
  void operator()(const AllowType& c) const { job.allow.push_back(c.gpu_type); }
  void operator()(const PreferTopology&) const { job.topology->required = false; }
  void operator()(const UseMoreNodes&) const { job.eligible.reset(); }
  void operator()(const RaiseLimit& c) const {
    state.queues.at(c.queue).quotas[c.gpu_type].limit = c.to;
  }
  void operator()(const RaiseGuarantee& c) const {
    state.queues.at(c.queue).quotas[c.gpu_type].guaranteed = c.to;
  }
  void operator()(const AddGpus& c) const {
    state.nodes.push_back(
        node("new", c.gpus, c.gpus, c.gpu_type.empty() ? std::string("A") : c.gpu_type));
    if (job.eligible) job.eligible->insert("new");
  }
};

Outcome outcome_with(ClusterState state, const JobId& id, const Fix& fix,
                     const PolicyConfig& config) {
  Job& job = *std::ranges::find(state.jobs, id, &Job::id);
  for (const Change& change : fix) std::visit(Apply{state, job}, change);
  return verdict_of(make_plan(state, config), state, id).outcome;
}

// The job alone, on nodes that hold nothing and take pods.
ClusterState empty_but_for(ClusterState state, const JobId& id) {
  std::erase_if(state.jobs, [&](const Job& job) { return job.id != id; });
  Job& job = state.jobs.at(0);
  job.held.clear();
  job.avoid.clear();
  job.started = false;
  for (Node& n : state.nodes) {
    const auto domains = n.domains;
    n = node(n.id, n.gpus_total, n.gpus_total, n.gpu_type);
    n.domains = domains;
  }
  return state;
}

// None where it cannot be smaller.
std::optional<Change> a_little_less(const Job& job, const Change& change) {
  if (const auto* c = std::get_if<LowerMin>(&change); c != nullptr && c->to + 1 < job.min)
    return LowerMin{c->to + 1};
  if (const auto* c = std::get_if<RaiseMax>(&change); c != nullptr && c->to - 1 > job.max)
    return RaiseMax{c->to - 1};
  if (const auto* c = std::get_if<RaiseLimit>(&change); c != nullptr && c->to > 0)
    return RaiseLimit{c->queue, c->gpu_type, c->to - 1};
  if (const auto* c = std::get_if<RaiseGuarantee>(&change); c != nullptr && c->to > 0)
    return RaiseGuarantee{c->queue, c->gpu_type, c->to - 1};
  return std::nullopt;
}

// Never is what only a change helps: whoever is told so has a fix by which it is placed, alone in
// the cluster, and a smaller one of its kind does not help; whoever waits needs none. In the cells
// of its queue there may be no fix, where no smaller minimum helps either, and who never comes into
// them may be told to wait.
TEST(FixProperty, MakesTheNeverPlaced) {
  constexpr std::uint64_t kFirst = 600;
  std::map<std::string, int> seen;
  int in_cells = 0;
  int without_fix = 0;
  for (std::uint64_t seed = 1; seed <= seeds_of_all_policies(kFirst); ++seed) {
    const PolicyConfig config = policy_of_seed(seed, kFirst);
    ClusterState state = drawn_cluster(seed, config);
    Rng of_cells(seed + 3'000'000);
    if (seed % 3 == 0) draw_cells(of_cells, state, config);
    const Plan plan = make_plan(state, config);
    const std::vector<Fix> fixes = fixes_of(state, plan);
    for (std::size_t i = 0; i < state.jobs.size(); ++i) {
      const Job& job = state.jobs[i];
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + config.policy + ", job " + job.id);
      const Fix fix = fix_of(state, job);
      EXPECT_EQ(fixes[i], plan.verdicts[i].outcome == Outcome::kNever ? fix : Fix{});
      const bool is_in_cells = is_confined_to_cells(state.queues.at(job.queue));
      in_cells += is_in_cells && !fix.empty() ? 1 : 0;
      const ClusterState empty = empty_but_for(state, job.id);
      if (is_in_cells && fix.empty() &&
          outcome_with(empty, job.id, {}, config) != Outcome::kPlaced) {
        for (Gpus min = 1; min < job.min; ++min)
          EXPECT_NE(outcome_with(empty, job.id, {LowerMin{min}}, config), Outcome::kPlaced) << min;
        ++without_fix;
      }
      if (is_in_cells && (fix.empty() || plan.verdicts[i].outcome != Outcome::kNever)) continue;
      if (plan.verdicts[i].outcome != Outcome::kNever) {
        if (plan.verdicts[i].outcome == Outcome::kNotNow) {
          EXPECT_EQ(to_text(fix), "");
        }
        if (fix.empty()) {
          EXPECT_EQ(outcome_with(empty, job.id, {}, config), Outcome::kPlaced);
        }
        continue;
      }
      ASSERT_FALSE(fix.empty());
      for (const Change& change : fix) ++seen[name_of(change)];
      EXPECT_NE(outcome_with(state, job.id, fix, config), Outcome::kNever) << to_text(fix);
      EXPECT_EQ(outcome_with(empty, job.id, fix, config), Outcome::kPlaced) << to_text(fix);
      for (std::size_t at = 0; at < fix.size(); ++at) {
        Fix less = fix;
        const auto smaller = a_little_less(job, fix[at]);
        if (smaller)
          less[at] = *smaller;
        else
          less.erase(less.begin() + static_cast<std::ptrdiff_t>(at));
        EXPECT_NE(outcome_with(empty, job.id, less, config), Outcome::kPlaced)
            << to_text(less) << " is enough, and not only " << to_text(fix);
      }
    }
  }
  for (const char* change :
       {"lowerMin", "raiseMax", "anyShape", "lowerPerPod", "allowType", "preferTopology",
        "useMoreNodes", "raiseLimit", "raiseGuarantee", "addGpus"})
    EXPECT_GE(seen[change], 1) << change;
  EXPECT_GE(in_cells, 10);
  EXPECT_GE(without_fix, 1);
}

}  // namespace
}  // namespace rubato::sched
