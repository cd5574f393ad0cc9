// Synergy: CPU and memory of nodes go to the jobs that they make faster.
#include "scheduler/snapshot/snapshot.h"
#include "tests/unit/scheduler/policy_cases.h"

namespace rubato::sched {
namespace {

Node with_total(Node node, MilliCpu cpu, Bytes gib) {
  node.total = CpuMemory{cpu, gib * kGib};
  return node;
}

// At full speed with so much for each GPU, at half of it with half.
Job wants(Job job, MilliCpu cpu, Bytes gib) {
  job.sensitivity = {{{cpu / 2, gib * kGib / 2}, 0.5}, {{cpu, gib * kGib}, 1}};
  return job;
}

Plan plan_with_shares(const ClusterState& state, const std::string& policy, bool shares = true) {
  return make_plan(state, {.policy = policy, .cpu_memory_shares = shares});
}

// A GPU's part of its node is 2 CPUs and 10 GiB.
ClusterState two_run() {
  return cluster({with_total(node("n1", 4, 0), 8000, 40)},
                 {wants(running("hungry", 2, 2, {"n1", "n1"}), 3000, 10),
                  wants(running("modest", 2, 2, {"n1", "n1"}), 1000, 5)});
}

TEST(Synergy, WhatOneDoesNotNeedMakesTheOtherFaster) {
  const ClusterState state = two_run();
  const Plan plan = plan_with_shares(state, "synergy");
  EXPECT_EQ(plan.cpu_memory,
            (CpuMemoryShares{{"hungry", {3000, 10 * kGib}}, {"modest", {1000, 5 * kGib}}}));
  for (const char* simpler : {"fifo", "fifoBackfill", "sjf", "srtf", "las", "marginalThroughput"})
    EXPECT_FALSE(plan_with_shares(state, simpler).cpu_memory.has_value()) << simpler;
  EXPECT_FALSE(plan_with_shares(state, "synergy", false).cpu_memory.has_value());
}

// Its neighbour comes to its proportional share, and what was beyond that is taken back.
TEST(Synergy, NobodyIsBelowItsProportionalShare) {
  ClusterState state = two_run();
  state.jobs[1] = wants(running("second", 2, 2, {"n1", "n1"}), 3000, 10);
  EXPECT_EQ(plan_with_shares(state, "synergy").cpu_memory,
            (CpuMemoryShares{{"hungry", {2000, 10 * kGib}}, {"second", {2000, 10 * kGib}}}));
  state.jobs[1].sensitivity.clear();  // not known: it wants that share
  EXPECT_EQ(plan_with_shares(state, "synergy").cpu_memory->at("second").cpu, 2000);
}

// The node with fewest free GPUs has a hungry neighbour: who is hungry, too, goes to the other.
ClusterState one_starts() {
  ClusterState state = cluster(
      {with_total(node("n1", 4, 2), 8000, 40), with_total(node("n2", 4, 3), 8000, 40)},
      {wants(running("there", 2, 2, {"n1", "n1"}), 2000, 10),
       wants(running("modest", 1, 1, {"n2"}), 1000, 5), wants(job("starts", 2, 2), 3000, 10)});
  return state;
}

NodeId node_of_start(const ClusterState& state, const std::string& policy) {
  const Plan plan = plan_with_shares(state, policy);
  const auto found = std::ranges::find(plan.actions, "starts", &Action::job);
  return found == plan.actions.end() ? "" : found->add.at(0).node;
}

TEST(Synergy, StartsWhereTheDemandFits) {
  ClusterState state = one_starts();
  EXPECT_EQ(node_of_start(state, "synergy"), "n2");
  for (const char* simpler : {"fifo", "fifoBackfill", "sjf", "srtf", "las", "marginalThroughput"})
    EXPECT_EQ(node_of_start(state, simpler), "n1") << simpler;
  // Where nothing is known it is its base order, on the fullest node.
  for (Job& job : state.jobs) job.sensitivity.clear();
  EXPECT_EQ(node_of_start(state, "synergy"), "n1");
  for (std::uint64_t seed = 1; seed <= 50; ++seed)
    EXPECT_EQ(order_of(drawn(seed), "synergy"), order_of(drawn(seed), "fifoBackfill"));
}

TEST(Synergy, SnapshotsAndPlansSayIt) {
  const Snapshot snapshot{.state = two_run(),
                          .policy = {.policy = "synergy", .cpu_memory_shares = true}};
  const auto read = read_snapshot(to_text(snapshot));
  ASSERT_TRUE(read.ok()) << read.error().what();
  EXPECT_EQ(*read, snapshot);
  EXPECT_EQ(
      json::dump(to_json(make_plan(snapshot.state, snapshot.policy), snapshot.state)["cpuMemory"]),
      R"([{"job":"hungry","milliCpu":3000,"memoryBytes":10737418240},)"
      R"({"job":"modest","milliCpu":1000,"memoryBytes":5368709120}])");
  Snapshot bad = snapshot;
  bad.state.jobs[1].sensitivity[0].per_gpu.cpu = 0;
  EXPECT_EQ(read_snapshot(to_text(bad)).error().what(),
            "jobs[1].sensitivity[0].milliCpu: 0, expected a whole number from 1 to "
            "9007199254740992");
}

ClusterState drawn_hungry(std::uint64_t seed) {
  Rng rng(seed);
  ClusterState state = cluster({}, {});
  std::vector<NodeId> free;
  for (const char* id : {"n1", "n2", "n3"}) {
    state.nodes.push_back(node(id, 4, 0));
    if (rng.chance(0.95))
      state.nodes.back() =
          with_total(state.nodes.back(), 4000 + 1000 * static_cast<MilliCpu>(rng.below(16)),
                     static_cast<Bytes>(20 + rng.below(80)));
    free.insert(free.end(), 4, id);
  }
  for (std::uint64_t i = 0; i < 6 && !free.empty(); ++i) {
    std::vector<NodeId> nodes;
    for (std::uint64_t left = 1 + rng.below(4); left > 0 && !free.empty(); --left) {
      const std::size_t at = rng.chance(0.8) ? free.size() - 1 : rng.below(free.size());
      nodes.push_back(free[at]);
      free.erase(free.begin() + static_cast<std::ptrdiff_t>(at));
    }
    const Gpus gpus = std::ssize(nodes);
    Job one = running("j" + std::to_string(i), gpus, gpus, nodes);
    if (rng.chance(0.85))
      one = wants(one, 500 * static_cast<MilliCpu>(1 + rng.below(12)),
                  1 + static_cast<Bytes>(rng.below(40)));
    state.jobs.push_back(one);
  }
  return state;
}

// The reference: of all sets of jobs that have their demand while the others have the lesser of it
// and their proportional share, those that fit; of these the first in the order of jobs by GPUs.
class AllSets {
 public:
  explicit AllSets(const ClusterState& state) : state_(state) {
    for (const Job& job : state.jobs) {
      CpuMemory least{MilliCpu{1} << 40U, Bytes{1} << 60U};
      bool is_known = true;
      for (const Held& held : job.held) {
        const Node& node = at(held.node);
        is_known = is_known && node.total;
        if (node.total) lower(least, {node.total->cpu / 4, node.total->memory / 4});
      }
      if (!is_known) continue;
      const CpuMemory demand = job.sensitivity.empty() ? least : job.sensitivity[1].per_gpu;
      lower(least, demand);
      jobs_.push_back({&job, least, demand});
    }
    std::ranges::sort(jobs_, [](const One& a, const One& b) {
      if (a.job->held.size() != b.job->held.size()) return a.job->held.size() > b.job->held.size();
      return a.job->id < b.job->id;
    });
  }

  CpuMemoryShares best() const {
    const std::size_t sets = std::size_t{1} << jobs_.size();
    // The first job is the highest bit.
    for (std::size_t set = sets; set-- > 0;)
      if (const auto shares = shares_of(set); fit(shares)) return shares;
    return {};
  }

 private:
  struct One {
    const Job* job;
    CpuMemory base;
    CpuMemory demand;
  };
  static void lower(CpuMemory& to, const CpuMemory& by) {
    to = {std::min(to.cpu, by.cpu), std::min(to.memory, by.memory)};
  }
  const Node& at(const NodeId& id) const { return *std::ranges::find(state_.nodes, id, &Node::id); }
  CpuMemoryShares shares_of(std::size_t set) const {
    CpuMemoryShares shares;
    for (std::size_t i = 0; i < jobs_.size(); ++i)
      shares[jobs_[i].job->id] =
          (set >> (jobs_.size() - 1 - i) & 1U) != 0 ? jobs_[i].demand : jobs_[i].base;
    return shares;
  }
  bool fit(const CpuMemoryShares& shares) const {
    std::map<NodeId, CpuMemory> taken;
    for (const One& one : jobs_)
      for (const Held& held : one.job->held) {
        taken[held.node].cpu += shares.at(one.job->id).cpu;
        taken[held.node].memory += shares.at(one.job->id).memory;
      }
    return std::ranges::all_of(taken, [&](const auto& of_node) {
      const CpuMemory& total = *at(of_node.first).total;
      return of_node.second.cpu <= total.cpu && of_node.second.memory <= total.memory;
    });
  }

  const ClusterState& state_;
  std::vector<One> jobs_;
};

TEST(Synergy, RaisesTheFirstOfAllSetsThatFit) {
  int raised = 0, kept = 0;
  for (std::uint64_t seed = 1; seed <= kDrawnStates; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ClusterState state = drawn_hungry(seed);
    const CpuMemoryShares shares = plan_with_shares(state, "synergy").cpu_memory.value();
    EXPECT_EQ(shares, AllSets(state).best());
    for (const Job& job : state.jobs)
      if (const auto share = shares.find(job.id); share != shares.end() && !job.sensitivity.empty())
        ++(share->second == job.sensitivity[1].per_gpu ? raised : kept);
  }
  EXPECT_GT(raised, 100);
  EXPECT_GT(kept, 100);
}

}  // namespace
}  // namespace rubato::sched
