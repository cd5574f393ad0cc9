// What cannot be played is an error in words: never an endless simulation, never a wrong figure.
#include "scheduler/sim/import/importers.h"
#include "tests/unit/scheduler/sim_traces.h"

namespace rubato::sched::sim {
namespace {

// A gigabyte a second at full speed, of a data set of which nothing is cached.
TraceJob reads_much(TraceJob job) {
  job.dataset = Dataset{.name = "d", .bytes = 1'000'000'000, .bytes_per_second = 1'000'000'000};
  return job;
}

std::string error_of(const Result<SimResult>& result) {
  return result.ok() ? "" : result.error().what();
}

Result<SimResult> try_to_play(const std::string& cluster, std::vector<TraceJob> jobs,
                              const std::string& policy, const SimOptions& options) {
  const auto scheduler = scheduler_named(policy);
  return simulate(parse_cluster(cluster).value(), std::move(jobs), **scheduler, options);
}

SimOptions with_bandwidth_of(Bytes bytes_per_second) {
  return {.costs = simple_costs(),
          .storage = Storage{.cache_bytes = 0, .remote_bytes_per_second = bytes_per_second}};
}

// A ten-millionth of its speed: 60 s take 6·10^8.
TEST(SimBounds, AJobThatIsSlowedDownVeryMuchIsAsSlowAsThat) {
  const SimResult result =
      play("1x1:A", {reads_much(rigid("a", 0, 1, 60))}, "fifo", with_bandwidth_of(100));
  EXPECT_NEAR(finish_s(result, "a"), 6e8, 6e3);
}

TEST(SimBounds, AJobThatIsTooSlowForItsDataIsAnErrorNotAWrongTime) {
  const std::string error = error_of(
      try_to_play("1x4:A", {reads_much(rigid("a", 0, 4, 1e7))}, "fifo", with_bandwidth_of(100)));
  EXPECT_NE(error.find("job a has trained for 1e+10 s and is not done"), std::string::npos)
      << error;
}

// As long as a reads, b has nothing of the 1 byte/s.
TEST(SimBounds, AJobThatStandsStillForAWhileEndsAllTheSame) {
  TraceJob b = rigid("b", 0, 1, 1000);
  b.dataset = Dataset{.name = "e", .bytes = 10, .bytes_per_second = 1};
  const SimResult result =
      play("1x2:A", {reads_much(rigid("a", 0, 1, 1e-6)), b}, "fifo", with_bandwidth_of(1));
  EXPECT_NEAR(finish_s(result, "a"), 1010, 0.01);
  EXPECT_NEAR(finish_s(result, "b"), 2010, 0.01);
}

// 131 072 GPUs for 9·10^9 s.
TEST(SimBounds, MoreGpuTimeThanCanBeCountedIsAnError) {
  const std::string error = error_of(try_to_play(
      "128x1024:A", {reads_much(rigid("a", 0, 131'072, 900))}, "fifo", with_bandwidth_of(100)));
  EXPECT_NE(error.find("more than 1e+15 GPU-seconds"), std::string::npos) << error;
}

// Nobody has the type on which it is slow, it may not use it, or it never has so few GPUs.
TEST(SimBounds, SpeedsThatAJobCannotHaveDoNotCount) {
  const std::string header = "id,submit_s,gpus,gpu_types,min_gpus,max_gpus,work,throughput\n";
  for (const char* row :
       {"a,0,2,,2,2,1000,K80:2=1e-9;A100:2=10", "a,0,2,A100,2,2,1000,T4:2=1e-9;A100:2=10",
        "a,0,2,A100,2,2,1000,A100:1=1e-9;A100:2=10"}) {
    const auto jobs = read_rubato({"t", header + row + "\n"}).value();
    const SimResult result = play("1x2:A100,1x2:T4", jobs, "fifo");
    EXPECT_EQ(finish_s(result, "a"), 10 + 100) << row;
  }
  const auto slow = read_rubato({"t", header + "a,0,2,,2,2,1000,A100:2=1e-9\n"}).value();
  EXPECT_EQ(error_of(try_to_play("1x2:A100", slow, "fifo", {})),
            "line 2: job a: trains for 1e+12 s where it is slowest; at most 1e+10 can be played");
}

TEST(SimBounds, ATraceThatNeedsTooManyRoundsIsRefused) {
  const std::vector<TraceJob> longest = {rigid("a", 0, 1, 1e10)};
  const std::string error = error_of(try_to_play("1x1:A", longest, "las", {.round_ms = 10'000}));
  EXPECT_NE(error.find("job a: trains for 1e+10 s at least, in which policy las decides 1e+09 "
                       "times; at most 100000000 rounds can be played"),
            std::string::npos)
      << error;
  EXPECT_EQ(finish_s(play("1x1:A", longest, "fifo"), "a"), 1e10 + 10);  // has no such rounds
  std::vector<TraceJob> many;
  for (int i = 0; i < 30; ++i) many.push_back(rigid(std::to_string(i), 100 * i, 1, 10));
  const std::string at_last = error_of(try_to_play("1x1:A", many, "fifo", {.rounds_most = 10}));
  EXPECT_NE(at_last.find("policy fifo has decided 10 times until"), std::string::npos) << at_last;
}

// Stops whoever has the GPU at each round, and gives it to the next.
class Restless : public Scheduler {
 public:
  const Descriptor& descriptor() const override { return about_; }
  Plan decide(const ClusterState& state) override {
    for (const Job& job : state.jobs) {
      if (job.held.empty()) continue;
      if (state.now_ms == job.allocated_ms) return {};
      return {.actions = {{.job = job.id, .remove = {job.held[0].ordinal}}}};
    }
    const Job& next = state.jobs[turn_++ % state.jobs.size()];
    return {.actions = {{.job = next.id, .add = {{state.nodes[0].id, "A", 1}}}}};
  }

 private:
  const Descriptor about_{.name = "restless", .timed = true};
  std::size_t turn_ = 0;
};

TEST(SimBounds, APolicyUnderWhichNobodyTrainsIsAnErrorNotALoop) {
  Restless restless;
  std::vector<TraceJob> jobs;
  for (int i = 0; i < 20; ++i) jobs.push_back(rigid(std::to_string(i), 0, 1, 100));
  const std::string error = error_of(simulate(parse_cluster("1x1:A").value(), jobs, restless,
                                              {.costs = simple_costs(), .round_ms = 1000}));
  EXPECT_NE(error.find("policy restless makes no progress"), std::string::npos) << error;
}

// It trains for 1 ms after each restart of 20 s.
TEST(SimBounds, AJobThatRestartsForEverIsAnErrorNotALoop) {
  Restless restless;
  const std::string error =
      error_of(simulate(parse_cluster("1x1:A").value(), {rigid("a", 0, 1, 1e6)}, restless,
                        {.costs = simple_costs(), .round_ms = 20'001}));
  EXPECT_NE(error.find("policy restless, start of job a at "), std::string::npos) << error;
  EXPECT_NE(error.find("it makes no progress: its GPUs have changed 10000 times"),
            std::string::npos)
      << error;
}

}  // namespace
}  // namespace rubato::sched::sim
