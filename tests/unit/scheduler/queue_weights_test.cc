// Weights of queues: their shares by examples, and on drawn clusters against the rule as
// scheduler/queue_weights.h says it, worked out by names; what comes of shares under each policy.
#include "scheduler/queue_weights.h"

#include "scheduler/model/queue_tree.h"
#include "scheduler/model/quota.h"
#include "scheduler/model/sizes.h"
#include "scheduler/policy/registry.h"
#include "scheduler/snapshot/snapshot.h"
#include "tests/unit/scheduler/drawn_clusters.h"
#include "tests/unit/scheduler/policy_cases.h"

#include <tuple>

namespace rubato::sched {
namespace {

using QueueShares = std::map<std::string, Gpus>;

QueueShares queue_shares_of(const ClusterState& state) {
  const Problem problem(state);
  return shares_by_weight(problem);
}

void add_weighted_queue(ClusterState& state, const std::string& name, double weight,
                        const std::string& parent = "", Gpus guaranteed = 0) {
  state.queues[name] = {.name = name, .weight = weight, .parent = parent};
  if (guaranteed > 0) state.queues[name].quotas["*"].guaranteed = guaranteed;
}

void add_jobs(ClusterState& state, const std::string& queue, int count, Gpus size) {
  for (int i = 0; i < count; ++i) {
    Job one = job(queue + std::to_string(i), size, size);
    one.queue = queue;
    one.queued_at = static_cast<double>(state.jobs.size());
    one.duration_ms = one.remaining_ms = 1'000'000;
    state.jobs.push_back(one);
  }
}

ClusterState sixteen() {
  ClusterState state = cluster({node("n0", 8, 8), node("n1", 8, 8)}, {});
  state.queues.clear();
  return state;
}

TEST(QueueWeights, MinimumsAreSharedByWeight) {
  ClusterState state = sixteen();
  add_weighted_queue(state, "small", 1);
  add_weighted_queue(state, "large", 3);
  add_jobs(state, "small", 16, 1);
  add_jobs(state, "large", 16, 1);
  EXPECT_EQ(queue_shares_of(state), (QueueShares{{"large", 12}, {"small", 4}}));
  state.jobs.resize(16 + 6);  // what one does not want the other gets
  EXPECT_EQ(queue_shares_of(state), (QueueShares{{"large", 6}, {"small", 10}}));
}

TEST(QueueWeights, WhatIsGuaranteedComesFirst) {
  ClusterState state = sixteen();
  add_weighted_queue(state, "light", 1, "", 8);
  add_weighted_queue(state, "heavy", 100);
  add_jobs(state, "light", 16, 1);
  add_jobs(state, "heavy", 16, 1);
  EXPECT_EQ(queue_shares_of(state), (QueueShares{{"heavy", 8}, {"light", 8}}));
}

TEST(QueueWeights, PartsShareWhatTheirParentGets) {
  ClusterState state = sixteen();
  add_weighted_queue(state, "a", 1);
  add_weighted_queue(state, "b", 1);
  add_weighted_queue(state, "a-left", 1, "a");
  add_weighted_queue(state, "a-right", 2, "a");
  for (const char* queue : {"a", "b", "a-left", "a-right"}) add_jobs(state, queue, 16, 1);
  EXPECT_EQ(queue_shares_of(state),
            (QueueShares{{"a", 8}, {"a-left", 2}, {"a-right", 4}, {"b", 8}}));
}

TEST(QueueWeights, LimitsAndSizesLeaveRoomToOthers) {
  ClusterState state = sixteen();
  add_weighted_queue(state, "limited", 10);
  state.queues["limited"].quotas["*"].limit = 3;
  add_weighted_queue(state, "large", 1);
  add_jobs(state, "limited", 8, 1);
  add_jobs(state, "large", 3, 6);
  EXPECT_EQ(queue_shares_of(state), (QueueShares{{"large", 12}, {"limited", 3}}));
}

// By names and lists, each time from the beginning.
class WeightReference {
 public:
  explicit WeightReference(const ClusterState& state)
      : state_(state), problem_(state), quota_(problem_) {
    for (JobIndex j; j < problem_.end_of_jobs(); ++j)
      if (problem_.takes_part(j) && size_at_least(problem_.job(j), 0)) waiting_.push_back(j);
  }
  QueueShares run() {
    QueueShares all;
    for (const auto& [name, queue] : state_.queues) all[name] = 0;
    while (!waiting_.empty()) {
      const JobIndex j = next("", all);
      std::erase(waiting_, j);
      if (!fits(j)) continue;
      served_.push_back(j);
      for (const std::string& name : with_parents(state_.queues, problem_.job(j).queue))
        all[name] += size(j);
    }
    return all;
  }

 private:
  Gpus size(JobIndex j) const { return *size_at_least(problem_.job(j), 0); }
  std::string parent_of(const std::string& name) const {
    const auto names = with_parents(state_.queues, name);
    return names.size() > 1 ? names[1] : "";
  }
  bool is_below(JobIndex j, const std::string& name) const {
    return std::ranges::count(with_parents(state_.queues, problem_.job(j).queue), name) > 0;
  }

  // Of those that wait in the queue or its parts ("": in any).
  JobIndex next(const std::string& queue, const QueueShares& all) const {
    using Claim = std::tuple<bool, double, int, std::string>;  // with ties: own jobs first
    std::optional<Claim> least;
    std::optional<JobIndex> job;
    const auto offer = [&](const Claim& claim, JobIndex j) {
      if (least && *least <= claim) return;
      least = claim;
      job = j;
    };
    for (const auto& [name, of] : state_.queues) {
      if (parent_of(name) != queue) continue;
      if (std::ranges::none_of(waiting_, [&](JobIndex j) { return is_below(j, name); })) continue;
      const JobIndex j = next(name, all);
      Gpus types = 0, together = 0;
      for (const auto& [type, quota] : problem_.quotas_of(problem_.queue_named(name)))
        (type == "*" ? together : types) += quota.guaranteed;
      offer({all.at(name) + size(j) > std::max(types, together),
             static_cast<double>(all.at(name)) / of.weight, 1, name},
            j);
    }
    Gpus own = 0;
    for (const JobIndex j : served_)
      if (problem_.job(j).queue == queue) own += size(j);
    std::optional<JobIndex> first;
    const auto key = [&](JobIndex j) {
      const Job& of = problem_.job(j);
      return std::tuple(-of.priority, of.queued_at, of.id);
    };
    for (const JobIndex j : waiting_)
      if (problem_.job(j).queue == queue && (!first || key(j) < key(*first))) first = j;
    if (first) offer({true, static_cast<double>(own), 0, ""}, *first);
    return *job;
  }

  bool fits(JobIndex j) {
    const Job& of = problem_.job(j);
    const std::vector<TypeIndex> types = problem_.group(j).types;
    if (problem_.group(j).capacity_now.most() < size(j)) return false;
    const QueueIndex queue = problem_.queue_of(j);
    const auto type = std::ranges::find_if(types, [&](TypeIndex one) {
      return size(j) <= (of.mix ? quota_.room(queue) : quota_.room(queue, one));
    });
    if (type == types.end()) return false;
    // All that may use no other types than some set must fit in its nodes.
    std::set<std::vector<TypeIndex>> sets{types};
    for (JobIndex other; other < problem_.end_of_jobs(); ++other)
      if (problem_.takes_part(other) && size_at_least(problem_.job(other), 0))
        sets.insert(problem_.group(other).types);
    for (const auto& set : sets) {
      if (!std::ranges::includes(set, types)) continue;
      Gpus wanted = size(j), most = 0;
      for (const JobIndex other : served_)
        if (std::ranges::includes(set, problem_.group(other).types)) wanted += size(other);
      for (NodeIndex n; n < problem_.end_of_nodes(); ++n)
        if (problem_.node(n).schedulable && std::ranges::count(set, problem_.type_of(n)) > 0)
          most += problem_.node(n).gpus_total;
      if (wanted > most) return false;
    }
    quota_.take(queue, *type, size(j));
    return true;
  }

  const ClusterState& state_;
  Problem problem_;
  QuotaBook quota_;
  std::vector<JobIndex> waiting_;
  std::vector<JobIndex> served_;
};

ClusterState drawn_with_weights(std::uint64_t seed, const PolicyConfig& config) {
  ClusterState state = drawn_cluster(seed, config);
  Rng rng(seed + 9'000'000);
  for (auto& [name, queue] : state.queues)
    queue.weight = std::array{0.5, 1.0, 2.0, 7.0}.at(rng.below(4));
  return state;
}

TEST(QueueWeights, DrawnSharesAreThoseOfTheRule) {
  std::size_t parents = 0, shares = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    const ClusterState state = drawn_with_weights(seed, {});
    const QueueShares found = queue_shares_of(state);
    ASSERT_EQ(found, WeightReference(state).run()) << seed << "\n" << to_text(Snapshot{state, {}});
    for (const auto& [name, queue] : state.queues) {
      parents += queue.parent.empty() ? 0 : 1;
      shares += found.at(name) > 0 ? 1 : 0;
    }
  }
  EXPECT_GT(parents, 20u);
  EXPECT_GT(shares, 200u);
}

// "small" has come first and holds all; "large" gets three of four under each policy, and both keep
// them.
TEST(QueueWeights, EachPolicyGivesQueuesTheirShares) {
  for (const Descriptor& policy : all_policies()) {
    ClusterState state = sixteen();
    add_weighted_queue(state, "small", 1);
    add_weighted_queue(state, "large", 3);
    add_jobs(state, "small", 16, 1);
    const PolicyConfig config{.policy = policy.name, .queue_weights = true};
    obey(make_plan(state, config), state);
    add_jobs(state, "large", 16, 1);
    const ClusterState end = at_rest(state, config, 30, 0);
    EXPECT_TRUE(make_plan(end, config).actions.empty()) << policy.name;
    QueueShares held;
    for (const Job& job : end.jobs) held[job.queue] += std::ssize(job.held);
    EXPECT_EQ(held, (QueueShares{{"large", 12}, {"small", 4}})) << policy.name;
    EXPECT_EQ(make_plan(end, config).queue_shares, held) << policy.name;
  }
}

TEST(QueueWeights, AQueueThatWasDeletedUnderItsJobsCountsAsOne) {
  for (const Descriptor& policy : all_policies()) {
    ClusterState state = sixteen();
    add_weighted_queue(state, "there", 1);
    add_jobs(state, "there", 2, 1);
    add_jobs(state, "gone", 1, 1);
    state.jobs.back().started = true;
    state.jobs.back().held.push_back({0, "n0", "A", 1});
    const Plan plan = make_plan(state, {.policy = policy.name, .queue_weights = true});
    EXPECT_EQ(plan.queue_shares.count("gone"), 0u) << policy.name;
  }
}

// They follow from who asks and not from who holds: plans come to rest as without them.
TEST(QueueWeights, PlansComeToRest) {
  for (const Descriptor& policy : all_policies()) {
    const PolicyConfig config{.policy = policy.name, .queue_weights = true};
    for (std::uint64_t seed = 1; seed <= 100; ++seed) {
      const ClusterState state = drawn_with_weights(seed, config);
      EXPECT_TRUE(make_plan(at_rest(state, config, 40, 0), config).actions.empty())
          << policy.name << ", seed " << seed;
    }
  }
}

}  // namespace
}  // namespace rubato::sched
