// Nodes that fail in the simulator: by hand, alike for all policies, and never without an end.
#include "common/rng.h"
#include "scheduler/sim/results.h"
#include "tests/unit/scheduler/sim_traces.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace rubato::sched::sim {
namespace {

// The first node fails at 262.682 s and is back 100 s later, for 1 112.889 s; the second fails at
// 1 220.697 s. Jobs write a checkpoint after each minute of training.
NodeFailures one_early_failure() {
  return {.mtbf_ms = 1'000'000, .repair_ms = 100'000, .seed = 6, .checkpoint_ms = 60'000};
}

// As gentle_costs(); members that are left stand still for 3 s.
CostModel members_go_on(TimeMs park_ms) {
  CostModel costs = gentle_costs();
  costs.in_place = true;
  costs.loss_ms = 3'000;
  costs.park_ms = park_ms;
  return costs;
}

SimResult play_failing(const std::string& cluster, const TraceJob& job, const std::string& policy,
                       const CostModel& costs) {
  return play(cluster, {job}, policy, {.costs = costs, .failures = one_early_failure()});
}

// It trains from 10 on and has 252.682 s of 300 when its node fails; 12.682 s of that came after
// its last checkpoint, and are lost. The node is back at 362.682, a restart takes 20 s, and 60 s
// are to do.
TEST(SimFailures, WhoLosesAllBeginsAgainAtTheLastCheckpoint) {
  const SimResult result = play_failing("1x2:A", rigid("a", 0, 2, 300), "fifo", simple_costs());
  EXPECT_EQ(finish_s(result, "a"), 442.682);
  EXPECT_EQ(of(result, "a").restarts, 1);
  EXPECT_EQ(of(result, "a").preemptions, 0);
  EXPECT_EQ(of(result, "a").lost_gpu_ms, 2 * 12'682);
  EXPECT_EQ(of(result, "a").gpu_ms, 2 * (262'682 + 80'000));
  EXPECT_EQ(result.failures, 1);
}

// By checkpoint and restart the loss of one of its two GPUs is a restart, too: it begins again at
// once on the other one, at 480 of 800 units, trains from 282.682 on and has done 80 when the node
// is back. It grows, stands for 30 s, and does 240 at 2 a second.
TEST(SimFailures, ByRestartAnyLossGoesBackToTheLastCheckpoint) {
  const SimResult result =
      play_failing("2x1:A", linear("a", 0, 1, 2, 800), "marginalThroughput", simple_costs());
  EXPECT_EQ(finish_s(result, "a"), 512.682);
  EXPECT_EQ(of(result, "a").restarts, 1);
  EXPECT_EQ(of(result, "a").rescales, 1);
  EXPECT_EQ(of(result, "a").lost_gpu_ms, 2 * 12'682);
}

// In place: 505.364 of 800 units are done, and none is lost. The other one stands for 3 s and does
// 97 until the node is back. A newcomer prepares there for 15 s, in which it does 15 more; 2 s of
// stall, and 182.636 are left for two: 91.318 s. At the end both leave in 5 s.
TEST(SimFailures, InPlaceTheOthersGoOn) {
  const SimResult result =
      play_failing("2x1:A", linear("a", 0, 1, 2, 800), "marginalThroughput", members_go_on(50'000));
  EXPECT_EQ(finish_s(result, "a"), 471);
  EXPECT_EQ(of(result, "a").restarts, 0);
  EXPECT_EQ(of(result, "a").lost_gpu_ms, 0);
  EXPECT_EQ(of(result, "a").gpu_ms, 2 * 262'682 + 100'000 + 2 * 108'318 + 2 * 5'000);
}

// The one that is left is fewer than its minimum: nobody trains. It waits until the node is back;
// a newcomer prepares there for 15 s, 2 s of stall, and 147.318 s of 400 are to do.
TEST(SimFailures, FewerThanItsMinimumStandStill) {
  const SimResult result =
      play_failing("2x1:A", rigid("a", 0, 2, 400), "fifo", members_go_on(200'000));
  EXPECT_EQ(finish_s(result, "a"), 527);
  EXPECT_EQ(of(result, "a").restarts, 0);
}

// The same, but after 50 s it gives its GPU up, which is free 5 s later. Its state was written:
// from 362.682 on it starts again for 20 s.
TEST(SimFailures, AndGiveUpWhatTheyHaveAfterAWhile) {
  const SimResult result =
      play_failing("2x1:A", rigid("a", 0, 2, 400), "fifo", members_go_on(50'000));
  EXPECT_EQ(finish_s(result, "a"), 530);
  EXPECT_EQ(of(result, "a").restarts, 1);
  EXPECT_EQ(of(result, "a").lost_gpu_ms, 0);
  EXPECT_EQ(of(result, "a").gpu_ms, 2 * 262'682 + 55'000 + 2 * 167'318 + 2 * 5'000);
}

// Two pods from the beginning on, each on a node, and maybe a third from an instant on. Lost ones
// are written off.
class GrowsOnce : public Scheduler {
 public:
  explicit GrowsOnce(std::optional<TimeMs> grows_ms) : grows_ms_(grows_ms) {}
  const Descriptor& descriptor() const override { return about_; }
  Plan decide(const ClusterState& state) override {
    const Job& job = state.jobs.front();
    Action action{.job = job.id};
    if (job.held.empty()) action.add = {{state.nodes[0].id, "A", 1}, {state.nodes[1].id, "A", 1}};
    if (state.now_ms == grows_ms_) action.add = {{state.nodes[1].id, "A", 1}};
    for (const Held& held : job.held)
      if (held.lost) action.remove.push_back(held.ordinal);
    if (!action.remove.empty()) was_settled = job.settled;
    if (action.add.empty() && action.remove.empty()) return {};
    return {.actions = {action}};
  }
  std::optional<TimeMs> next_wake(const ClusterState& state) const override {
    return state.now_ms < grows_ms_.value_or(0) ? grows_ms_ : std::nullopt;
  }
  std::optional<bool> was_settled;  // when it had lost pods

 private:
  const std::optional<TimeMs> grows_ms_;
  const Descriptor about_{.name = "growsOnce", .elastic = true};
};

// 505.364 of 600 units are done when one of the two is lost; the newcomer is ready at 263, in the
// 3 s in which the other one stands still. Both train from 265.682 on, for 47.318 s.
TEST(SimFailures, ANewcomerDoesNotEndTheStallOfALoss) {
  GrowsOnce grows(248'000);
  const auto result = simulate(parse_cluster("2x2:A").value(), {linear("a", 0, 1, 3, 600)}, grows,
                               {.costs = members_go_on(50'000), .failures = one_early_failure()});
  ASSERT_TRUE(result.ok()) << result.error().what();
  EXPECT_EQ(finish_s(*result, "a"), 313);
}

// While they do not train they are neither grown nor shrunk, as in the operator. Of the 600 units
// 94.636 are done by one, from 265.682 on.
TEST(SimFailures, ThoseThatAreLeftAreNotChangedBeforeTheyTrainAgain) {
  GrowsOnce stays(std::nullopt);
  const auto result = simulate(parse_cluster("2x2:A").value(), {linear("a", 0, 1, 3, 600)}, stays,
                               {.costs = members_go_on(50'000), .failures = one_early_failure()});
  ASSERT_TRUE(result.ok()) << result.error().what();
  EXPECT_EQ(finish_s(*result, "a"), 360.318);
  EXPECT_EQ(stays.was_settled, false);
}

// Starts each job once, on a node of its own. Lost pods are written off.
class StartsOnce : public Scheduler {
 public:
  const Descriptor& descriptor() const override { return about_; }
  Plan decide(const ClusterState& state) override {
    Plan plan;
    for (const Job& job : state.jobs) {
      Action action{.job = job.id};
      for (const Held& held : job.held)
        if (held.lost) action.remove.push_back(held.ordinal);
      if (started_.insert(job.id).second)
        action.add = {{state.nodes[started_.size() - 1].id, "A", 1}};
      if (!action.add.empty() || !action.remove.empty()) plan.actions.push_back(action);
    }
    return plan;
  }

 private:
  std::set<JobId> started_;
  const Descriptor about_{.name = "startsOnce"};
};

// a has its GPU for 262.682 s, and b for 110 s.
TEST(SimFailures, WhatWasUsedIsOfAllTheTimeInWhichSomebodyHeldGpus) {
  StartsOnce starts;
  const auto result =
      simulate(parse_cluster("2x1:A").value(), {rigid("a", 0, 1, 1000), rigid("b", 0, 1, 100)},
               starts, {.costs = simple_costs(), .failures = one_early_failure()});
  ASSERT_TRUE(result.ok()) << result.error().what();
  EXPECT_EQ(of(*result, "a").finish_ms, -1);
  EXPECT_EQ(finish_s(*result, "b"), 110);
  EXPECT_NEAR(summarise(*result).utilisation, 372.682 / 525.364, 1e-9);
}

// Without a node that fails while somebody runs nothing is as it would not be.
TEST(SimFailures, ANodeThatNobodyIsOnIsMissedByNobody) {
  const TraceJob job = rigid("a", 0, 1, 100);
  const SimResult failing =
      play("1x1:A", {job}, "fifo", {.costs = simple_costs(), .failures = one_early_failure()});
  EXPECT_EQ(to_csv(failing), to_csv(play("1x1:A", {job}, "fifo")));
  EXPECT_EQ(failing.failures, 0);
}

// Some 200 000 times before the job comes.
TEST(SimFailures, FailuresBeforeAnybodyComesAreNoEndlessSimulation) {
  const NodeFailures often{.mtbf_ms = 1'000, .repair_ms = 0};
  const auto scheduler = scheduler_named("fifo").value();
  const auto result = simulate(parse_cluster("1x1:A").value(), {rigid("a", 200'000, 1, 1e-3)},
                               *scheduler, {.costs = {.name = "free"}, .failures = often});
  ASSERT_TRUE(result.ok()) << result.error().what();
  EXPECT_GT(result->failures, 150'000);
}

// Its guest was on the same GPU.
TEST(SimFailures, AGuestIsLostWithItsHost) {
  std::vector<TraceJob> jobs = {rigid("a", 0, 1, 400), rigid("b", 5, 1, 300)};
  for (TraceJob& job : jobs)
    job.sharing = SharingProfile{.use = {.busy = 0.4, .memory = 0, .beside_another = 0.9}};
  const SimResult result =
      play("1x1:A", jobs, "lucid", {.costs = simple_costs(), .failures = one_early_failure()});
  for (const JobResult& job : result.jobs) {
    EXPECT_EQ(job.restarts, 1) << job.id;
    EXPECT_GE(job.finish_ms, 382'682) << job.id;
  }
}

// Hears which nodes are away, whenever that has changed.
class WatchesNodes : public Scheduler {
 public:
  using Changes = std::vector<std::pair<TimeMs, std::set<NodeId>>>;
  explicit WatchesNodes(const std::string& policy)
      : inner_(scheduler_named(policy, quick_parameters(policy)).value()) {}
  const Descriptor& descriptor() const override { return inner_->descriptor(); }
  Plan decide(const ClusterState& state) override {
    std::set<NodeId> away;
    for (const Node& node : state.nodes)
      if (!node.schedulable) away.insert(node.id);
    if (changes.empty() || changes.back().second != away)
      changes.emplace_back(state.now_ms, std::move(away));
    return inner_->decide(state);
  }
  std::optional<TimeMs> next_wake(const ClusterState& state) const override {
    return inner_->next_wake(state);
  }
  Changes changes;

 private:
  const std::unique_ptr<Scheduler> inner_;
};

// Rigid and elastic ones, of whole seconds.
std::vector<TraceJob> jobs_on_failing_nodes(std::uint64_t seed) {
  Rng rng(seed);
  std::vector<TraceJob> jobs;
  for (int i = 0; i < 25; ++i) {
    const Gpus gpus = Gpus{1} << rng.below(4);
    const auto seconds = static_cast<double>(20 + rng.below(200));
    const auto submit_s = static_cast<TimeMs>(rng.below(400));
    const std::string id = fmt::format("j{:02}", i);
    jobs.push_back(i % 2 == 0
                       ? rigid(id, submit_s, gpus, seconds)
                       : linear(id, submit_s, gpus, 2 * gpus, seconds * static_cast<double>(gpus)));
  }
  return jobs;
}

NodeFailures many_failures() {
  return {.mtbf_ms = 600'000, .repair_ms = 60'000, .seed = 3, .checkpoint_ms = 20'000};
}

TEST(SimFailures, AllPoliciesMeetTheSameFailures) {
  std::vector<WatchesNodes::Changes> heard;
  TimeMs until = std::numeric_limits<TimeMs>::max();
  for (const char* policy : {"fifo", "srtf", "las", "marginalThroughput", "rubato"}) {
    WatchesNodes watches(policy);
    auto jobs = jobs_on_failing_nodes(1);
    jobs.push_back(rigid("long", 0, 1, 2000));  // nodes are heard of as long as there is a job
    ASSERT_TRUE(simulate(parse_cluster("6x4:A").value(), jobs, watches,
                         {.costs = in_place_costs(), .failures = many_failures()})
                    .ok());
    until = std::min(until, watches.changes.back().first);
    heard.push_back(watches.changes);
  }
  for (WatchesNodes::Changes& changes : heard)
    std::erase_if(changes, [&](const auto& change) { return change.first > until; });
  EXPECT_GT(heard.front().size(), 10u);
  for (const WatchesNodes::Changes& changes : heard) EXPECT_EQ(changes, heard.front());
}

TEST(SimFailures, EveryPolicyKeepsTheBooksWhileNodesFail) {
  for (const CostModel& costs : {restart_costs(), in_place_costs()}) {
    for (const Descriptor& policy : all_policies()) {
      const std::string what = costs.name + " " + policy.name;
      const auto jobs = jobs_on_failing_nodes(2);
      const SimOptions options{.costs = costs, .failures = many_failures()};
      const SimResult result = play("3x4:A,1x8:B", jobs, policy.name, options);
      GpuMs held = 0;
      for (std::size_t i = 0; i + 1 < result.samples.size(); ++i) {
        EXPECT_GE(result.samples[i].held, 0) << what;
        EXPECT_LE(result.samples[i].held, 20) << what;
        held += result.samples[i].held * (result.samples[i + 1].at_ms - result.samples[i].at_ms);
      }
      EXPECT_EQ(result.samples.back().held, 0) << what;
      EXPECT_GT(result.failures, 0) << what;
      GpuMs charged = 0;
      for (const JobResult& job : result.jobs) {
        ASSERT_GE(job.finish_ms, 0) << what << " " << job.id;
        charged += job.gpu_ms;
        if (policy.elastic) continue;
        const TraceJob& trace = *std::ranges::find(jobs, job.id, &TraceJob::id);
        const double seconds = trace.work / trace.speed.at("A", trace.request);
        EXPECT_EQ(job.training_gpu_ms - job.lost_gpu_ms,
                  static_cast<GpuMs>(seconds * 1000) * job.request)
            << what << " " << job.id;
      }
      EXPECT_EQ(charged, held) << what;
      EXPECT_EQ(to_csv(result), to_csv(play("3x4:A,1x8:B", jobs, policy.name, options))) << what;
    }
  }
}

TEST(SimFailures, FailuresOfEachNodeAreItsOwnAndOfTheSeed) {
  const auto first_of = [](std::uint64_t seed, std::size_t node) {
    return Uptimes({.mtbf_ms = 1'000'000, .seed = seed}, node).next();
  };
  EXPECT_EQ(first_of(6, 0), 262'682);
  EXPECT_EQ(first_of(6, 0), first_of(6, 0));
  EXPECT_NE(first_of(6, 0), first_of(6, 1));
  EXPECT_NE(first_of(6, 0), first_of(7, 0));
  Uptimes uptimes({.mtbf_ms = 1'000'000}, 0);
  double sum = 0;
  for (int i = 0; i < 10'000; ++i) sum += static_cast<double>(uptimes.next());
  EXPECT_NEAR(sum / 10'000, 1e6, 4e4);
}

std::string error_of_failing(const std::string& cluster, const TraceJob& job,
                             const NodeFailures& failures) {
  const auto scheduler = scheduler_named("fifo").value();
  const auto result = simulate(parse_cluster(cluster).value(), {job}, *scheduler,
                               {.costs = simple_costs(), .failures = failures});
  EXPECT_FALSE(result.ok());
  if (result.ok()) return "";
  EXPECT_EQ(result.error().code(), Code::kInvalid);
  return result.error().what();
}

// Either a node fails before a start is over, or never are all of them there.
TEST(SimFailures, NodesThatFailTooOftenAreAnErrorNotALoop) {
  const std::string restarts =
      error_of_failing("1x1:A", rigid("a", 0, 1, 100), {.mtbf_ms = 500, .repair_ms = 500});
  EXPECT_NE(restarts.find("it makes no progress: its GPUs have changed 10000 times"),
            std::string::npos)
      << restarts;
  EXPECT_NE(restarts.find("make their mtbf longer"), std::string::npos) << restarts;
  const std::string waits =
      error_of_failing("8x1:A", rigid("a", 1000, 8, 100), {.mtbf_ms = 500, .repair_ms = 50'000});
  EXPECT_NE(waits.find("no job has trained for 100000 rounds; nodes fail too often for that: make "
                       "their mtbf longer"),
            std::string::npos)
      << waits;
}

TEST(SimFailures, AreReadFromText) {
  const NodeFailures said = parse_failures("mtbf=0.5,repair=2,checkpoint=0.5,seed=7").value();
  EXPECT_EQ(said.mtbf_ms, 1'800'000);
  EXPECT_EQ(said.repair_ms, 120'000);
  EXPECT_EQ(said.checkpoint_ms, 30'000);
  EXPECT_EQ(said.seed, 7u);
  const NodeFailures assumed = parse_failures("mtbf=1").value();
  EXPECT_EQ(assumed.repair_ms, 3'600'000);
  EXPECT_EQ(assumed.checkpoint_ms, 1'800'000);
  EXPECT_EQ(assumed.seed, 1u);
  for (const std::string wrong :
       {"mtbf=1", "repair", "repair=", "repair=x", "repair=1h", "repair=-1", "repair=nan",
        "repair=1e7", "checkpoint=0", "seed=1.5", "seed=-1", "mtbs=1", "=1"}) {
    const auto read = parse_failures("mtbf=1," + wrong);
    ASSERT_FALSE(read.ok()) << wrong;
    EXPECT_TRUE(read.error().what().starts_with("\"" + wrong + "\": expected mtbf=HOURS")) << wrong;
  }
  for (const char* wrong : {"mtbf=0", "mtbf=1,,repair=1", ","})
    EXPECT_FALSE(parse_failures(wrong).ok()) << wrong;
  EXPECT_EQ(parse_failures("mtbf=0").error().what(),
            "\"mtbf=0\": expected mtbf=HOURS (from 0.01), repair=MINUTES (from 0), "
            "checkpoint=MINUTES (from 0.01) or seed=NUMBER (whole, from 0), each once and at most "
            "1000000, as in mtbf=720,repair=60");
  EXPECT_EQ(parse_failures("repair=1").error().what(),
            "\"repair=1\": expected the hours after which a node fails on average, too, as in "
            "mtbf=720,repair=60");
}

}  // namespace
}  // namespace rubato::sched::sim
