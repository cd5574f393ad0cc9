// The policies that put two jobs on the same GPUs: `lucid`, `gandiva`, `antMan`.
#include "scheduler/snapshot/snapshot.h"
#include "tests/unit/scheduler/policy_cases.h"

#include <set>

namespace rubato::sched {
namespace {

Job with_use(Job job, double busy, double beside = 0.97, Bytes gib = 1) {
  job.gpu_use = {.busy = busy, .memory = gib * kGib, .beside_another = beside};
  return job;
}

// Two GPUs, which "runs" holds, and one that waits for two.
ClusterState one_waits() {
  ClusterState state = cluster(
      {node("n1", 2, 0)},
      {with_use(running("runs", 2, 2, {"n1", "n1"}), 0.4), with_use(job("waits", 2, 2), 0.4)});
  for (Job& job : state.jobs) job.duration_ms = 1'000'000;
  state.jobs[0].allocated_ms = state.now_ms = 1'000;
  return state;
}

Plan plan_sharing(const ClusterState& state, const std::string& policy, bool sharing = true) {
  return make_plan(state, {.policy = policy, .sharing = sharing});
}

JobId host_after(const ClusterState& state, const std::string& policy, bool sharing = true) {
  const Plan plan = plan_sharing(state, policy, sharing);
  const auto found = std::ranges::find(plan.actions, "waits", &Action::job);
  return found == plan.actions.end() ? "" : found->shares_with;
}

TEST(Sharing, WhoFindsNoGpusIsAGuest) {
  for (const char* policy : {"lucid", "gandiva", "antMan"}) {
    SCOPED_TRACE(policy);
    ClusterState state = one_waits();
    if (std::string(policy) == "antMan") state.jobs[1].priority = -1;
    const Plan plan = plan_sharing(state, policy);
    ASSERT_EQ(plan.actions.size(), 1u);
    EXPECT_EQ(plan.actions[0].kind, ActionKind::kStart);
    EXPECT_EQ(plan.actions[0].shares_with, "runs");
    EXPECT_EQ(plan.actions[0].add.size(), 2u);
    EXPECT_EQ(to_text(plan.actions[0].cause), "shares the GPUs of runs");
    EXPECT_EQ(plan.verdicts[1].outcome, Outcome::kPlaced);
    // Its mechanism off it waits, as under all simpler policies.
    EXPECT_EQ(host_after(state, policy, false), "");
    for (const char* simpler : {"fifo", "fifoBackfill", "sjf", "qssf", "marginalThroughput"})
      EXPECT_EQ(host_after(state, simpler), "") << simpler;
  }
}

TEST(Sharing, FreeGpusComeFirst) {
  ClusterState state = one_waits();
  state.nodes.push_back(node("n2", 2, 2));
  EXPECT_EQ(plan_sharing(state, "lucid").actions[0].shares_with, "");
}

TEST(Sharing, AGuestStopsWithItsHost) {
  ClusterState state = one_waits();
  state.jobs[1] = with_use(running("waits", 2, 2, {"n1", "n1"}), 0.4);
  state.jobs[1].priority = -1;
  state.jobs[1].guest_of = "runs";
  EXPECT_TRUE(plan_sharing(state, "antMan").actions.empty());
  Job urgent = job("urgent", 2, 2);
  urgent.priority = 9;
  state.jobs.push_back(urgent);
  Plan plan = plan_sharing(state, "antMan");
  ASSERT_EQ(plan.actions.size(), 2u);
  EXPECT_EQ(plan.actions[0].kind, ActionKind::kPreempt);
  EXPECT_EQ(plan.actions[1].kind, ActionKind::kPreempt);
  EXPECT_EQ(to_text(plan.actions[1].cause), "it shared the GPUs of runs, which leaves them");
  // … when a pod of the host is lost, and under a policy that does not share.
  state.jobs.pop_back();
  EXPECT_EQ(to_text(plan_sharing(state, "fifo").actions.at(0).cause),
            "sharing the GPUs of runs is not worth it");
  state.jobs[0].held[0].lost = true;
  plan = plan_sharing(state, "antMan");
  const auto stopped = std::ranges::find(plan.actions, "waits", &Action::job);
  ASSERT_NE(stopped, plan.actions.end());
  EXPECT_EQ(stopped->remove.size(), 2u);
}

TEST(Sharing, SnapshotsSayIt) {
  ClusterState state = one_waits();
  state.jobs[1] = with_use(running("waits", 2, 2, {"n1", "n1"}), 0.4);
  state.jobs[1].guest_of = "runs";
  state.jobs[1].beside = {{"runs", 0.5}};
  const Snapshot snapshot{.state = state, .policy = {.policy = "lucid", .sharing = true}};
  const auto read = read_snapshot(to_text(snapshot));
  ASSERT_TRUE(read.ok()) << read.error().what();
  EXPECT_EQ(read->state, state);
  EXPECT_TRUE(read->policy.sharing);
  const auto error_of = [](const Snapshot& bad) {
    return read_snapshot(to_text(bad)).error().what();
  };
  Snapshot bad = snapshot;
  bad.state.jobs[1].guest_of = "nobody";
  EXPECT_EQ(error_of(bad),
            "jobs[1].guestOf: \"nobody\", expected the id of a job that is no guest itself");
  bad = snapshot;
  bad.state.jobs[0].held.pop_back();
  EXPECT_EQ(
      error_of(bad),
      "jobs[1].guestOf: with other guests more pods on \"n1\", expected at most as many as its "
      "host has there");
}

// Who is tried as a host for whom, by an own reading of each rule, pair by pair.
using Pairs = std::set<std::pair<JobId, JobId>>;

Pairs pairs_of(const ClusterState& state, const std::string& policy) {
  const Targets targets = targets_of(state, policy);
  Pairs pairs;
  for (std::size_t j = 0; j < state.jobs.size(); ++j)
    for (const JobIndex host : targets.hosts[j])
      pairs.emplace(state.jobs[j].id, state.jobs[host.value].id);
  return pairs;
}

ClusterState drawn_with_use(std::uint64_t seed) {
  ClusterState state = drawn(seed);
  Rng rng(seed + 500);
  for (Job& job : state.jobs) {
    job.duration_ms = 1'000'000 * (1 + static_cast<TimeMs>(rng.below(9)));
    job.min = 1 + static_cast<Gpus>(rng.below(2));
    if (job.started) job.min = std::ssize(job.held);
    if (rng.chance(0.3)) job.priority = -1;
    if (rng.chance(0.9))
      job = with_use(std::move(job), rng.chance(0.5) ? 0.5 : 0.9,
                     0.75 + 0.1 * static_cast<double>(rng.below(3)),
                     static_cast<Bytes>(rng.below(20)));
  }
  for (Job& job : state.jobs)
    for (const Job& other : state.jobs)
      if (rng.chance(0.5)) job.beside.push_back({other.id, rng.chance(0.5) ? 0.6 : 0.4});
  return state;
}

template <class MayPair>
void expect_pairs(const std::string& policy, const MayPair& may_pair) {
  std::size_t found = 0;
  for (std::uint64_t seed = 1; seed <= kDrawnStates; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ClusterState state = drawn_with_use(seed);
    Pairs pairs;
    for (const Job& guest : state.jobs)
      for (const Job& host : state.jobs)
        if (!guest.started && guest.refused.empty() && host.started && guest.gpu_use &&
            host.gpu_use && may_pair(guest, host))
          pairs.emplace(guest.id, host.id);
    EXPECT_EQ(pairs_of(state, policy), pairs);
    found += pairs.size();
  }
  EXPECT_GT(found, kDrawnStates / 10);
}

TEST(Lucid, PairsWhomTheRuleSays) {
  const auto score = [](const Job& job) {
    return job.gpu_use->beside_another >= 0.95 ? 0 : job.gpu_use->beside_another >= 0.85 ? 1 : 2;
  };
  expect_pairs("lucid", [&](const Job& guest, const Job& host) {
    return guest.min == std::ssize(host.held) && score(guest) + score(host) <= 2 &&
           guest.gpu_use->memory + host.gpu_use->memory <= 24 * kGib &&
           *guest.duration_ms * guest.min <= 2 * *host.duration_ms * host.min;
  });
}

TEST(Gandiva, PairsWhomTheRuleSays) {
  const auto part = [](const Job& of, const Job& other) {
    for (const SpeedBeside& known : of.beside)
      if (known.job == other.id) return known.part;
    return 100.0;
  };
  expect_pairs("gandiva", [&](const Job& guest, const Job& host) {
    return guest.min == std::ssize(host.held) &&
           guest.gpu_use->memory + host.gpu_use->memory <= 16 * kGib &&
           part(guest, host) + part(host, guest) >= 1;
  });
}

TEST(AntMan, PairsWhomTheRuleSays) {
  expect_pairs("antMan", [](const Job& guest, const Job& host) {
    return guest.priority < 0 && host.priority >= 0 && host.gpu_use->busy < 0.8 &&
           host.gpu_use->memory < 16 * kGib && guest.min <= std::ssize(host.held);
  });
}

// The least scores first: the host that loses least.
TEST(Lucid, TriesTheLeastScoresFirst) {
  ClusterState state = one_waits();
  state.nodes.push_back(node("n2", 2, 0));
  state.jobs[0].gpu_use->beside_another = 0.9;
  Job tiny = with_use(running("tiny", 2, 2, {"n2", "n2"}), 0.4);
  tiny.duration_ms = 1'000'000;
  state.jobs.push_back(tiny);
  EXPECT_EQ(host_after(state, "lucid"), "tiny");
  // One that has a guest already is not asked again.
  Job guest = with_use(running("guest", 2, 2, {"n2", "n2"}), 0.4);
  guest.guest_of = "tiny";
  guest.duration_ms = 1'000'000;
  state.jobs.push_back(guest);
  EXPECT_EQ(host_after(state, "lucid"), "runs");
}

// A turn changes hands only where nobody can be shared with.
TEST(Gandiva, SharesBeforeItTakesTurns) {
  ClusterState state = one_waits();
  state.now_ms = 10'000'000;  // the quantum is over
  state.jobs[0].attained_gpu_ms = 1'000'000;
  EXPECT_EQ(host_after(state, "gandiva"), "runs");
  state.jobs[0].beside = {{"waits", 0.4}};
  state.jobs[1].beside = {{"runs", 0.5}};
  const Plan plan = plan_sharing(state, "gandiva");
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].kind, ActionKind::kPreempt);
  EXPECT_EQ(plan.actions[0].job, "runs");
}

// Several small ones on the GPUs of one large one.
TEST(AntMan, GuestsFillAHost) {
  ClusterState state =
      cluster({node("n1", 4, 0)}, {with_use(running("host", 4, 4, {"n1", "n1", "n1", "n1"}), 0.4)});
  for (int i = 0; i < 5; ++i) {
    state.jobs.push_back(with_use(job("small" + std::to_string(i), 1, 1), 0.9));
    state.jobs.back().priority = -1;
  }
  const Plan plan = plan_sharing(state, "antMan");
  EXPECT_EQ(std::ranges::count(plan.actions, "host", &Action::shares_with), 4);
  EXPECT_EQ(plan.verdicts[5].outcome, Outcome::kNotNow);
}

}  // namespace
}  // namespace rubato::sched
