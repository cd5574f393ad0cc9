// Load-based admission: who waits before any policy is asked, by examples, and on drawn clusters
// against the rule as scheduler/admission.h says it, worked out by names.
#include "scheduler/blockers.h"
#include "scheduler/model/sizes.h"
#include "scheduler/policy/registry.h"
#include "scheduler/snapshot/snapshot.h"
#include "tests/unit/scheduler/drawn_clusters.h"
#include "tests/unit/scheduler/policy_cases.h"

#include <map>
#include <set>

namespace rubato::sched {
namespace {

PolicyConfig with_load(const std::string& policy, double max_load) {
  return {.policy = policy, .max_load = max_load};
}

std::set<JobId> held_back(const ClusterState& state, const PolicyConfig& config) {
  const Plan plan = make_plan(state, config);
  std::set<JobId> ids;
  for (std::size_t i = 0; i < state.jobs.size(); ++i)
    if (plan.verdicts[i].reason == Reason::kLoadLimit) ids.insert(state.jobs[i].id);
  return ids;
}
using JobIds = std::set<JobId>;

Job arriving(const std::string& id, double at, Gpus min) {
  Job j = job(id, min, min);
  j.queued_at = at;
  return j;
}

// Two run that have had much; las would stop them for each newcomer.
ClusterState full_node() {
  Job one = running("one", 2, 2, {"n0", "n0"});
  Job two = running("two", 2, 2, {"n0", "n0"});
  one.attained_gpu_ms = two.attained_gpu_ms = 1'000'000'000;
  ClusterState state =
      cluster({node("n0", 4, 0)}, {one, two, arriving("three", 1, 2), arriving("four", 2, 2)});
  state.now_ms = 1'000'000'000;
  return state;
}

std::set<JobId> stopped(const ClusterState& state, const PolicyConfig& config) {
  JobIds ids;
  for (const Action& action : make_plan(state, config).actions)
    if (action.kind == ActionKind::kPreempt) ids.insert(action.job);
  return ids;
}

TEST(Admission, SparesThoseThatRunTheTurnsOfAllThatWait) {
  EXPECT_EQ(stopped(full_node(), with_load("las", 0)), JobIds({"one", "two"}));
  EXPECT_EQ(stopped(full_node(), with_load("las", 1.5)).size(), 1u);
  EXPECT_EQ(held_back(full_node(), with_load("las", 1.5)), JobIds{"four"});
  EXPECT_EQ(stopped(full_node(), with_load("las", 1)), JobIds{});
}

TEST(Admission, SaysWhatItWaitsFor) {
  const ClusterState state = full_node();
  const PolicyConfig config = with_load("fifo", 1.5);
  const Told said = told(state, make_plan(state, config), "four");
  EXPECT_EQ(said.outcome, Outcome::kNotNow);
  EXPECT_EQ(said.reason, "LoadLimit");
  EXPECT_EQ(said.message,
            "needs 2 GPUs; jobs that came before it want 6 GPUs at least, and the policy admits 6 "
            "(parameters.maxLoad times the healthy GPUs that it may use): it is admitted as they "
            "end, or with a higher maxLoad");
  EXPECT_EQ(blockers_of(state, config, "four").size(), 2u);
}

TEST(Admission, LaterOnesDoNotOvertake) {
  ClusterState state =
      cluster({node("n0", 8, 8)}, {arriving("a", 0, 6), arriving("b", 1, 4), arriving("c", 2, 1)});
  EXPECT_EQ(held_back(state, with_load("fifoBackfill", 1)), JobIds({"b", "c"}));
  state.jobs[2].attained_gpu_ms = 1;  // it ran before, and was stopped
  EXPECT_EQ(held_back(state, with_load("fifoBackfill", 1)), JobIds{"b"});
}

TEST(Admission, NobodyBeforeItIsEnough) {
  const ClusterState state =
      cluster({node("n0", 8, 8)}, {arriving("a", 0, 6), arriving("b", 1, 1)});
  EXPECT_EQ(held_back(state, with_load("fifo", 0.5)), JobIds{"b"});
}

TEST(Admission, CountsEachSetOfTypesAndAllThatAreWider) {
  ClusterState state = cluster({node("a0", 4, 4, "A"), node("b0", 4, 4, "B")},
                               {arriving("a1", 0, 3), arriving("a2", 1, 2), arriving("any", 2, 4),
                                arriving("b1", 3, 2), arriving("any2", 4, 1)});
  state.jobs[0].allow = state.jobs[1].allow = {"A"};
  state.jobs[3].allow = {"B"};
  // a2 waits for A, which no wider set counts; b1 finds 3 + 4 of 8 taken, any2 waits behind it.
  EXPECT_EQ(held_back(state, with_load("fifoBackfill", 1)), JobIds({"a2", "b1", "any2"}));
  state.nodes[1].schedulable = false;
  EXPECT_FALSE(held_back(state, with_load("fifoBackfill", 1)).contains("b1")) << "fits nowhere now";
}

TEST(Admission, QueuesKeepTheirGuaranteesAndTheirLimitsDoNotCount) {
  ClusterState state = cluster({node("n0", 4, 4)}, {arriving("a", 0, 4), arriving("b", 1, 2),
                                                    arriving("c", 2, 2), arriving("d", 3, 2)});
  state.queues["owner"] = {.name = "owner"};
  state.queues["owner"].quotas["A"].guaranteed = 2;
  for (const int i : {2, 3}) state.jobs[static_cast<std::size_t>(i)].queue = "owner";
  EXPECT_EQ(held_back(state, with_load("fifo", 1)), JobIds({"b", "d"}));
  state.queues["default"].quotas["*"].limit = 1;
  EXPECT_EQ(held_back(state, with_load("fifo", 2)), JobIds{});
  EXPECT_EQ(told(state, make_plan(state, with_load("fifo", 2)), "a").reason, "QueueLimit");
}

// Whether the nodes that take pods now hold its minimum, if it mixes no types and is confined to
// nothing.
bool fits_alone(const ClusterState& state, const Job& job, std::optional<Gpus> min) {
  std::map<std::string, Gpus> of_type;
  for (const Node& node : state.nodes)
    if (admits(job, node))
      of_type[node.gpu_type] += node.gpus_total / job.per_pod.gpus * job.per_pod.gpus;
  return std::ranges::any_of(of_type, [&](const auto& one) { return min && one.second >= *min; });
}

using TypeNames = std::set<std::string>;
TypeNames types_for(const ClusterState& state, const Job& job) {
  TypeNames types;
  for (const Node& node : state.nodes)
    if (may_use(job, node) && node.gpus_total >= job.per_pod.gpus) types.insert(node.gpu_type);
  return types;
}

double admitted_gpus(const ClusterState& state, const TypeNames& types, double max_load) {
  double healthy = 0;
  for (const Node& node : state.nodes)
    if (node.schedulable && types.contains(node.gpu_type))
      healthy += static_cast<double>(node.gpus_total);
  return max_load * healthy;
}

bool has_run(const Job& job) { return job.started || job.attained_gpu_ms > 0; }

// The rule again, of states without quotas.
JobIds expected(const ClusterState& state, double max_load) {
  std::map<TypeNames, Gpus> wanted;
  TypeNames all;
  for (const Node& node : state.nodes) all.insert(node.gpu_type);
  wanted[all];
  std::vector<const Job*> line;
  for (const Job& job : state.jobs) {
    if (is_kept_out(job)) continue;
    wanted[types_for(state, job)];
    line.push_back(&job);
  }
  std::ranges::sort(line, {}, [](const Job* job) {
    return std::tuple(!has_run(*job), has_run(*job) ? 0 : job->queued_at, job->id);
  });
  JobIds waiting;
  for (const Job* job : line) {
    const auto min = size_at_least(*job, 0);
    if (!has_run(*job) && !fits_alone(state, *job, min)) continue;
    std::vector<Gpus*> counts;
    std::vector<Gpus*> full;
    for (auto& [types, gpus] : wanted) {
      if (!std::ranges::includes(types, types_for(state, *job))) continue;
      counts.push_back(&gpus);
      const double most = admitted_gpus(state, types, max_load);
      if (gpus > 0 && static_cast<double>(gpus + min.value_or(0)) > most) full.push_back(&gpus);
    }
    if (!has_run(*job) && !full.empty()) {
      waiting.insert(job->id);
      counts = full;
    }
    for (Gpus* gpus : counts) *gpus += min.value_or(0);
  }
  return waiting;
}

TEST(Admission, IsTheRuleOnDrawnClusters) {
  std::size_t waited = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(seed);
    const PolicyConfig config = with_load("fifoBackfill", seed % 2 == 0 ? 1 : 0.7);
    ClusterState state = drawn_cluster(seed, {.policy = "fifoBackfill"});
    for (auto& [name, queue] : state.queues) queue.quotas.clear();
    for (auto& [name, queue] : state.queues) queue.borrowing = true;
    Rng rng(seed);
    for (Job& job : state.jobs) {
      job.topology.reset();
      job.mix = job.one_node = false;
      if (rng.chance(0.1)) job.attained_gpu_ms = 1;
      if (rng.chance(0.1)) job.refused = "suspended";
    }
    const JobIds found = held_back(state, config);
    ASSERT_EQ(found, expected(state, config.max_load)) << to_text(Snapshot{state, config});
    waited += found.size();
  }
  EXPECT_GT(waited, 200u);
}

// No policy gives anything to those that wait, nor counts with them.
TEST(Admission, HoldsUnderEveryPolicy) {
  for (const Descriptor& policy : all_policies()) {
    for (std::uint64_t seed = 1; seed <= 60; ++seed) {
      const ClusterState state = drawn_cluster(seed, {.policy = policy.name});
      const PolicyConfig config = with_load(policy.name, 0.8);
      const JobIds waiting = held_back(state, config);
      const Plan plan = make_plan(state, config);
      for (const Action& action : plan.actions) ASSERT_FALSE(waiting.contains(action.job));
      ClusterState rest = state;
      for (Job& job : rest.jobs)  // what leaves comes free, whoever held it
        if (waiting.contains(job.id) && !job.held.empty()) job.refused = "waits";
      std::erase_if(rest.jobs,
                    [&](const Job& job) { return waiting.contains(job.id) && job.held.empty(); });
      ASSERT_EQ(plan.actions, make_plan(rest, {.policy = policy.name}).actions)
          << policy.name << ", seed " << seed << "\n"
          << to_text(Snapshot{state, config});
    }
  }
}

}  // namespace
}  // namespace rubato::sched
