// What a scheduler under test can see, and what the simulator holds it to.
#include "common/rng.h"
#include "scheduler/sim/import/generate.h"
#include "scheduler/sim/results.h"
#include "tests/unit/scheduler/sim_traces.h"

#include <cmath>
#include <map>
#include <set>

#include <fmt/format.h>

namespace rubato::sched::sim {
namespace {

// Everything decided until then.
std::string decisions_until(TimeMs end_ms, const std::string& cluster,
                            const std::vector<TraceJob>& jobs, const std::string& policy,
                            Oracle oracle = Oracle::kTruth) {
  std::string log;
  SimOptions options{.costs = gentle_costs(), .oracle = oracle};
  options.on_plan = [&](TimeMs now, const Plan& plan) {
    if (now > end_ms) return;
    for (const Action& action : plan.actions) {
      log += fmt::format("{} {} {}:", now, name_of(action.kind), action.job);
      for (const Placement& add : action.add) log += " +" + add.node;
      for (const std::int64_t ordinal : action.remove) log += fmt::format(" -{}", ordinal);
      log += "\n";
    }
  };
  play(cluster, jobs, policy, options);
  EXPECT_FALSE(log.empty());
  return log;
}

// Minutes of the generator become seconds, so that rounds are few.
std::vector<TraceJob> some_jobs(std::uint64_t seed, std::int64_t jobs = 40) {
  auto made =
      poisson_trace({.seed = seed, .jobs = jobs, .jobs_per_hour = 360, .elastic_factor = 2});
  for (TraceJob& job : made) job.work = std::ceil(job.work / 60);
  return made;
}

TEST(SimSeam, FutureArrivalsChangeNothingNow) {
  for (const Descriptor& policy : all_policies()) {
    const auto jobs = some_jobs(1);
    const TimeMs until = jobs[29].submit_ms;
    auto fewer = jobs;
    fewer.resize(30);
    auto other = fewer;
    other.push_back(rigid("flood", until / 1000 + 1, 16, 10));
    const std::string as_it_was = decisions_until(until, "4x4:A", jobs, policy.name);
    EXPECT_EQ(as_it_was, decisions_until(until, "4x4:A", fewer, policy.name)) << policy.name;
    EXPECT_EQ(as_it_was, decisions_until(until, "4x4:A", other, policy.name)) << policy.name;
  }
}

// A job that ends later than the decision may last as long as it will: who does not know durations
// decides the same. Who knows them does not, or the oracle would be for nothing; on the larger
// cluster few jobs wait, and some policies are right there by luck.
TEST(SimSeam, UndeclaredDurationsChangeNothingNow) {
  for (const Descriptor& policy : all_policies()) {
    bool is_equal = true;
    for (const char* cluster : {"4x4:A", "2x4:A"}) {
      auto jobs = some_jobs(2);
      for (std::size_t job = 0; job < jobs.size(); job += 3)
        jobs[job].deadline_ms = jobs[job].submit_ms + 1'200'000;
      const TimeMs until = jobs[29].submit_ms;
      const SimResult played = play(cluster, jobs, policy.name, gentle_costs());
      auto longer = jobs;
      std::uint64_t i = 0;
      for (TraceJob& job : longer)
        if (of(played, job.id).finish_ms > until) job.work *= 1.0 + static_cast<double>(++i % 7);
      is_equal = is_equal && decisions_until(until, cluster, jobs, policy.name) ==
                                 decisions_until(until, cluster, longer, policy.name);
    }
    if (policy.knows == Knows::kDuration) continue;  // may be right by luck
    EXPECT_EQ(is_equal, policy.knows == Knows::kNothing) << policy.name;
  }
}

// The same of all policies when nobody tells them.
TEST(SimSeam, WithoutAnOracleDurationsChangeNothingNow) {
  for (const Descriptor& policy : all_policies()) {
    const auto jobs = some_jobs(3);
    const TimeMs until = jobs[29].submit_ms;
    const SimResult played =
        play("4x4:A", jobs, policy.name, {.costs = gentle_costs(), .oracle = Oracle::kNothing});
    auto longer = jobs;
    std::uint64_t i = 0;
    for (TraceJob& job : longer)
      if (of(played, job.id).finish_ms > until) job.work *= 1.0 + static_cast<double>(++i % 7);
    EXPECT_EQ(decisions_until(until, "4x4:A", jobs, policy.name, Oracle::kNothing),
              decisions_until(until, "4x4:A", longer, policy.name, Oracle::kNothing))
        << policy.name;
  }
}

// Two types, and a speed of its own for each count on each of them.
std::vector<TraceJob> jobs_of_all_speeds(std::uint64_t seed) {
  Rng rng(seed);
  auto jobs = some_jobs(seed);
  for (TraceJob& job : jobs) {
    job.speed = {};
    for (const char* type : {"A", "B"}) {
      const double first = 0.5 + rng.unit();
      for (Gpus gpus = 1; gpus <= job.max; ++gpus)
        job.speed.add(type, {gpus, first * std::pow(static_cast<double>(gpus), 0.9)});
    }
  }
  return jobs;
}

// Where each job was until then: type and count.
using Seen = std::map<JobId, std::set<std::pair<std::string, Gpus>>>;
Seen seen_until(TimeMs end_ms, const std::vector<TraceJob>& jobs, const std::string& policy) {
  Seen seen;
  std::map<JobId, Gpus> held;
  std::map<JobId, std::string> type;
  SimOptions options{.costs = gentle_costs(), .oracle = Oracle::kNothing};
  options.on_plan = [&](TimeMs now, const Plan& plan) {
    if (now > end_ms) return;
    for (const Action& action : plan.actions) {
      if (!action.add.empty()) type[action.job] = action.add.front().gpu_type;
      held[action.job] += std::ssize(action.add) - std::ssize(action.remove);
      // Newcomers join later: it trains at both sizes, and at those between if some left meanwhile.
      for (Gpus gpus = 1; gpus <= held[action.job]; ++gpus)
        seen[action.job].emplace(type[action.job], gpus);
    }
  };
  play("2x4:A,1x8:B", jobs, policy, options);
  return seen;
}

// How fast a job would be where it has not been, no policy can tell.
TEST(SimSeam, SpeedsThatNobodyHasSeenChangeNothingNow) {
  for (const Descriptor& policy : all_policies()) {
    const auto jobs = jobs_of_all_speeds(4);
    const TimeMs until = jobs[29].submit_ms;
    const Seen seen = seen_until(until, jobs, policy.name);
    auto other = jobs;
    std::size_t changed = 0;
    for (TraceJob& job : other) {
      SpeedCurve speed;
      for (const auto& [type, points] : job.speed.points())
        for (const SpeedPoint& point : points) {
          const auto of_job = seen.find(job.id);
          const bool is_seen = of_job != seen.end() && of_job->second.contains({type, point.gpus});
          changed += is_seen ? 0 : 1;
          speed.add(type, {point.gpus, point.units_per_second * (is_seen ? 1 : 3)});
        }
      job.speed = speed;
    }
    EXPECT_GT(changed, jobs.size()) << policy.name;
    EXPECT_EQ(decisions_until(until, "2x4:A,1x8:B", jobs, policy.name, Oracle::kNothing),
              decisions_until(until, "2x4:A,1x8:B", other, policy.name, Oracle::kNothing))
        << policy.name;
  }
}

// Whether growth pays is not known before it has been tried: the growth at 35 is decided alike for
// a job that gains from it and for one that loses.
TEST(SimSeam, UnobservedThroughputChangesNothingNow) {
  TraceJob gains = linear("a", 0, 1, 2, 200);
  TraceJob loses = gains;
  loses.speed = {};
  loses.speed.add("*", {1, 1.0});
  loses.speed.add("*", {2, 0.5});
  const std::vector<TraceJob> beside = {rigid("b", 0, 1, 20)};
  const auto until_growth = [&](const TraceJob& job) {
    return decisions_until(35'000, "1x2:A", {job, beside[0]}, "marginalThroughput");
  };
  const std::string log = until_growth(gains);
  EXPECT_NE(log.find("35000"), std::string::npos) << log;
  EXPECT_EQ(log, until_growth(loses));
}

TEST(SimSeam, EveryPolicyKeepsTheBooks) {
  std::uint64_t seed = 0;
  for (const CostModel& costs : {restart_costs(), in_place_costs(), gentle_costs()}) {
    ++seed;
    for (const Descriptor& policy : all_policies()) {
      const std::string what = fmt::format("seed {} {} {}", seed, costs.name, policy.name);
      const auto jobs = some_jobs(seed, 60);
      const SimResult result = play("2x4:A,1x8:B", jobs, policy.name, costs);
      GpuMs held = 0;
      for (std::size_t i = 0; i + 1 < result.samples.size(); ++i) {
        EXPECT_LE(result.samples[i].held, 16) << what;
        held += result.samples[i].held * (result.samples[i + 1].at_ms - result.samples[i].at_ms);
      }
      EXPECT_EQ(result.samples.back().held, 0) << what;
      GpuMs charged = 0;
      for (std::size_t i = 0; i < jobs.size(); ++i) {
        const JobResult& job = result.jobs[i];
        ASSERT_GE(job.finish_ms, 0) << what;
        charged += job.gpu_ms;
        EXPECT_LT(job.training_gpu_ms, job.gpu_ms) << what;  // a start is never free
        EXPECT_EQ(job.restarts, job.preemptions) << what;
        if (policy.elastic) continue;
        // At its request a unit takes a second.
        EXPECT_EQ(job.training_gpu_ms, static_cast<GpuMs>(jobs[i].work * 1000) * jobs[i].request)
            << what;
        EXPECT_EQ(job.rescales, 0) << what;
      }
      EXPECT_EQ(charged, held) << what;  // no GPU second is lost or made up
      EXPECT_EQ(to_csv(result), to_csv(play("2x4:A,1x8:B", jobs, policy.name, costs))) << what;
    }
  }
}

// Priorities, queues, deadlines, types, sizes: whatever comes, every job of a finite trace ends.
TEST(SimSeam, EveryJobOfATraceEnds) {
  for (const Descriptor& policy : all_policies()) {
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      Rng rng(seed);
      auto jobs = jobs_of_all_speeds(seed);
      for (TraceJob& job : jobs) {
        job.priority = static_cast<std::int64_t>(rng.below(3));
        job.queue = rng.chance(0.5) ? "default" : "other";
        if (rng.chance(0.5))
          job.deadline_ms = job.submit_ms + 1000 * static_cast<TimeMs>(rng.below(600));
        if (rng.chance(0.2)) job.allow = {rng.chance(0.5) ? "A" : "B"};
      }
      const Oracle oracle = seed % 2 == 0 ? Oracle::kTruth : Oracle::kObserved;
      const SimResult result =
          play("2x4:A,1x8:B", jobs, policy.name, {.costs = gentle_costs(), .oracle = oracle});
      EXPECT_EQ(result.jobs.size() + result.refused.size(), jobs.size());
      for (const JobResult& job : result.jobs)
        EXPECT_GE(job.finish_ms, 0) << policy.name << ", seed " << seed << ", " << job.id;
    }
  }
}

TEST(SimSeam, WhatNeverFitsIsLeftOutAndSaid) {
  const SimResult result = play("2x4:A", {rigid("a", 0, 9, 10), rigid("b", 0, 8, 10)}, "fifo");
  ASSERT_EQ(result.refused.size(), 1u);
  EXPECT_EQ(result.refused[0].why, "asks for 9 GPUs; the most of one type that it can use is 8");
  EXPECT_EQ(finish_s(result, "b"), 20);
}

// A policy with rounds of its own would wait for it for ever.
TEST(SimSeam, WhatItsQueueNeverLetsAJobHaveIsRefused) {
  SimOptions options{.costs = simple_costs()};
  options.queues["q"] = {.name = "q", .parent = "whole"};
  options.queues["whole"] = {.name = "whole"};
  options.queues["whole"].quotas["*"].limit = 4;
  std::vector<TraceJob> jobs = {rigid("large", 0, 8, 10), rigid("small", 0, 4, 10)};
  for (TraceJob& job : jobs) job.queue = "q";
  for (const char* policy : {"gavelFinish", "fifo"}) {
    const SimResult result = play("1x8:A", jobs, policy, options);
    EXPECT_EQ(result.jobs.size(), 1u) << policy;
    ASSERT_EQ(result.refused.size(), 1u) << policy;
    EXPECT_EQ(result.refused[0].why,
              "asks for 8 GPUs; the most of one type that queue \"q\" lets it have is 4");
  }
}

// Gives a job the GPU of another.
class Greedy : public Scheduler {
 public:
  const Descriptor& descriptor() const override { return about_; }
  Plan decide(const ClusterState& state) override {
    Plan plan;
    for (const Job& job : state.jobs)
      if (job.held.empty())
        plan.actions.push_back({.job = job.id, .add = {{state.nodes[0].id, "A", 1}}});
    return plan;
  }

 private:
  const Descriptor about_{.name = "greedy"};
};

TEST(SimSeam, APlanThatCannotBeIsAnError) {
  Greedy greedy;
  const auto result = simulate(parse_cluster("1x1:A").value(),
                               {rigid("a", 0, 1, 10), rigid("b", 5, 1, 10)}, greedy, {});
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().what().find("job b at 5000 ms: node n000000 has 0 GPUs free"),
            std::string::npos)
      << result.error().what();
}

// a and b need all 4 GPUs for 100 s. a is there with b for all of its 110 s: N = 2, its share is 2
// GPUs, so it has 4 for half of the time: alone 10 + 200. b: 2 jobs for 110 s, then 1 for 110: N
// = 1.5, so 4 GPUs for two thirds of the time: 10 + 150, and took 220.
TEST(SimResults, FinishTimeFairness) {
  const SimResult result = play("1x4:A", {rigid("a", 0, 4, 100), rigid("b", 0, 4, 100)}, "fifo");
  EXPECT_EQ(of(result, "a").alone_ms, 210'000);
  EXPECT_EQ(of(result, "b").alone_ms, 160'000);
  const Summary sum = summarise(result);
  EXPECT_DOUBLE_EQ(sum.rho_worst, 220.0 / 160.0);
  EXPECT_DOUBLE_EQ(sum.rho_above_share, 0.5);
  EXPECT_DOUBLE_EQ(sum.jct_mean_s, 165);
  EXPECT_DOUBLE_EQ(sum.makespan_s, 220);
  EXPECT_DOUBLE_EQ(sum.utilisation, 1);
  EXPECT_NEAR(sum.training_share, 200.0 / 220.0, 1e-12);
  EXPECT_NEAR(sum.gpu_hours, 880.0 / 3600.0, 1e-12);
  EXPECT_EQ(sum.queues.at("default").jobs, 2);
  EXPECT_DOUBLE_EQ(sum.queues.at("default").share, 1);
}

// It is done at 110 s, and its GPU is free at 115: all of that time counts as used, and no more.
TEST(SimResults, NoMoreThanAllGpusAreUsed) {
  const SimResult result = play("1x1:A", {rigid("a", 0, 1, 100)}, "fifo", gentle_costs());
  EXPECT_EQ(of(result, "a").gpu_ms, 115'000);
  const Summary sum = summarise(result);
  EXPECT_DOUBLE_EQ(sum.makespan_s, 110);
  EXPECT_DOUBLE_EQ(sum.utilisation, 1);
}

TEST(SimResults, AJobAloneIsNotSlowedDown) {
  const SimResult result = play("1x4:A", {rigid("a", 3, 2, 100)}, "fifo");
  EXPECT_DOUBLE_EQ(of(result, "a").rho(), 1.0);
  EXPECT_EQ(to_csv(result),
            "id,queue,gpus,submit_s,start_s,finish_s,jct_s,gpu_s,training_gpu_s,alone_s,rho,"
            "restarts,rescales,preemptions\n"
            "a,default,2,3.000,3.000,113.000,110.000,220.000,200.000,110.000,1.0000,0,0,0\n");
}

// Of two jobs that want all, the second is told to wait before the policy hears of it.
TEST(SimWords, SetWhatAllPoliciesHave) {
  const auto scheduler = scheduler_of_words("fifo:maxLoad=1:preempt=0");
  ASSERT_TRUE(scheduler.ok());
  const auto result = simulate(parse_cluster("1x2:A").value(),
                               {rigid("a", 0, 2, 100), rigid("b", 1, 2, 100)}, **scheduler, {});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->policy, "fifo:maxLoad=1:preempt=0");
  EXPECT_EQ(scheduler_of_words("fifo:maxLoad=-1").error().what(),
            "parameters.maxLoad is -1, but must be between 0 and 1000; change it");
}

TEST(SimResults, ClustersAreReadAndWritten) {
  EXPECT_EQ(to_text(parse_cluster("24x4:T4,2x8:A100").value()), "24x4:T4,2x8:A100");
  for (const char* bad : {"", "4", "4x4", "x4:A", "4x:A", "0x4:A", "4x4:", "4x4:A,", "4x4:*"})
    EXPECT_FALSE(parse_cluster(bad).ok()) << bad;
}

}  // namespace
}  // namespace rubato::sched::sim
