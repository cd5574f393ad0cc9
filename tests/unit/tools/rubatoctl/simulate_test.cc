#include "tools/rubatoctl/simulate/simulate.h"

#include "common/json.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>
#include <sys/stat.h>

namespace rubato::ctl {
namespace {

class Simulate : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = files_.make_unique_directory(::testing::TempDir() + "simulate-").value();
  }
  void TearDown() override { (void)files_.remove_all(folder_).ok(); }
  Result<std::string> run(const SimulateOptions& options) {
    return simulate(files_, clock_, options, [](const std::string&) {});
  }
  std::string written(const std::string& name) {
    return read_text(files_, folder_ + "/" + name, 1u << 24).value_or("");
  }

  PosixFileSystem files_;
  SystemClock clock_;
  std::string folder_;
};

TEST_F(Simulate, ATableWithALineForEachPolicyAndCost) {
  const std::string text = run({.trace = "tests/data/traces/rubato.csv",
                                .nodes = "1x4:T4,1x4:A100",
                                .policies = {"fifo", "marginalThroughput"}})
                               .value();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 5) << text;
  EXPECT_NE(text.find("marginalThroughput   in-place   nothing"), std::string::npos) << text;
}

TEST_F(Simulate, DomainsAndDistancesAreRead) {
  SimulateOptions options{.trace = "tests/data/traces/rubato.csv",
                          .nodes = "2x2:T4,2x2:A100",
                          .domains = "rack=2",
                          .distances = "rack=2",
                          .policies = {"liquid"},
                          .cost = "restart"};
  EXPECT_TRUE(run(options).ok());
  options.distances = "zone=2";
  EXPECT_EQ(run(options).error().what(),
            "--distance: \"zone\": expected \"node\" or a level of the cluster, each once");
  options.domains = "rack";
  EXPECT_EQ(run(options).error().what(),
            "--domains: \"rack\": expected LEVEL=NUMBER, from 1 to 100000");
}

// It reads twice as much as it can, and on the node has half of the CPUs that it asks for.
TEST_F(Simulate, JobsWaitForDataAndForCpus) {
  ASSERT_TRUE(replace_file(files_, folder_ + "/jobs.csv",
                           "submit_s,gpus,duration_s,dataset,dataset_gib,reads_gib_s,sensitivity\n"
                           "0,1,100,d,10,1,8:1=1\n")
                  .ok());
  SimulateOptions options{
      .trace = folder_ + "/jobs.csv", .nodes = "1x1:A", .policies = {"fifo"}, .cost = "restart"};
  EXPECT_NE(run(options).value().find(" 130.0 "), std::string::npos);
  options.remote_gib_s = 0.5;
  EXPECT_NE(run(options).value().find(" 230.0 "), std::string::npos);
  options.cache_gib = 10;
  EXPECT_NE(run(options).value().find(" 130.0 "), std::string::npos);
  options.node_cpus = 4;
  options.node_gib = 1;
  EXPECT_NE(run(options).value().find(" 230.0 "), std::string::npos);
}

TEST_F(Simulate, TheFolderHoldsReportSummaryAndJobs) {
  ASSERT_TRUE(run({.trace = "tests/data/traces/philly.csv",
                   .nodes = "1x4:T4",
                   .policies = {"srtf"},
                   .cost = "restart",
                   .out = folder_ + "/result"})
                  .ok());
  const std::string page = written("result/report.html");
  EXPECT_NE(page.find("<svg"), std::string::npos);
  EXPECT_EQ(page.find("http"), std::string::npos);  // nothing is fetched
  EXPECT_EQ(page.find("src="), std::string::npos);
  const auto summary = json::parse(written("result/summary.json")).value();
  EXPECT_EQ(summary["gpus"].int_or(0), 4);
  EXPECT_EQ(summary["runs"][0]["policy"].string_or(""), "srtf");
  EXPECT_EQ(summary["runs"][0]["finished"].int_or(0), 2);
  EXPECT_EQ(summary["runs"][0]["queues"]["vc-one"]["jobs"].int_or(0), 1);
  EXPECT_NE(written("result/jobs-srtf-restart.csv").find("philly-0000002,vc-one,2,0.000"),
            std::string::npos);
}

// On two nodes of its type, for it fits on none of these; the larger node is of another type.
TEST_F(Simulate, OneNodeIsOneThatTheJobMayUse) {
  ASSERT_TRUE(replace_file(files_, folder_ + "/jobs.csv",
                           "id,submit_s,gpus,gpu_types,duration_s\na,0,8,T4,60\nb,0,8,,60\n")
                  .ok());
  SimulateOptions options{.trace = folder_ + "/jobs.csv",
                          .nodes = "4x4:T4,1x8:A100",
                          .policies = {"fifo"},
                          .cost = "restart",
                          .one_node = true};
  const std::string text = run(options).value();
  EXPECT_EQ(text.find("left out"), std::string::npos) << text;
  auto jobs = load_trace(files_, options).value();
  ASSERT_TRUE(
      put_into_queues(jobs, {}, sched::sim::parse_cluster(options.nodes).value(), options).ok());
  EXPECT_FALSE(jobs[0].one_node);
  EXPECT_TRUE(jobs[1].one_node);
}

TEST_F(Simulate, ATraceMayComeThroughAPipe) {
  const std::string pipe = folder_ + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::jthread writer([&] { std::ofstream(pipe) << "submit_s,gpus,duration_s\n0,1,100\n"; });
  EXPECT_NE(run({.trace = pipe, .nodes = "1x1:A", .policies = {"fifo"}, .cost = "restart"})
                .value()
                .find(" 130.0 "),
            std::string::npos);
}

TEST_F(Simulate, FaultsOfQueuesNameAPlaceInTheirFile) {
  const SimulateOptions options{.queues = folder_ + "/queues.json"};
  const auto error_of = [&](const std::string& text) {
    EXPECT_TRUE(replace_file(files_, options.queues, text).ok());
    const auto read = load_queues(options);
    return read.ok() ? "" : read.error().what();
  };
  EXPECT_EQ(error_of(R"([{"name":"a"}])"), "");
  for (const std::string bad :
       {R"([{"name":"a",])", R"([],"jobs":[])", R"([{"name":"a","name":"b"}])"}) {
    const auto alone = json::parse(bad, {.refuses_duplicates = true});
    ASSERT_FALSE(alone.ok()) << bad;
    EXPECT_EQ(error_of(bad), options.queues + ": " + alone.error().what());
  }
  EXPECT_NE(error_of(R"([{"name":"a","weight":"b"}])").find("queues[0].weight"), std::string::npos);
}

TEST_F(Simulate, FaultsOfATraceAsAWholeNameItsFileAndLine) {
  ASSERT_TRUE(replace_file(files_, folder_ + "/jobs.csv",
                           "id,submit_s,gpus,work,throughput\na,0,1,1,*:1=1e-11\n")
                  .ok());
  const auto ran = run({.trace = folder_ + "/jobs.csv", .policies = {"fifo"}, .cost = "restart"});
  ASSERT_FALSE(ran.ok());
  EXPECT_NE(ran.error().what().find("jobs.csv: line 2: job a: trains for 1e+11 s"),
            std::string::npos)
      << ran.error().what();
}

TEST(SimulatePolicies, AreEachChosenOnce) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(chosen_policies("", {"fifo", "", "srtf", "fifo", " las "}).value(),
            (Words{"fifo", "srtf", "las"}));
  EXPECT_EQ(chosen_policies("srtf", {"fifo", "srtf"}).value(), (Words{"srtf", "fifo"}));
  EXPECT_EQ(chosen_policies("fifo", {""}).value(), Words{"fifo"});
  EXPECT_EQ(chosen_policies("", {"", " "}).error().what(),
            "--compare: expected names of policies, as in fifo,srtf");
}

TEST_F(Simulate, GavelsTracesNeedTheirSpeedsAndPoliciesMayHaveParameters) {
  SimulateOptions options{.trace = "tests/data/traces/gavel.trace",
                          .nodes = "1x4:v100,1x4:k80",
                          .policies = {"gavel:objective=2"},
                          .cost = "restart"};
  EXPECT_NE(run(options).error().what().find("--throughputs"), std::string::npos);
  options.throughputs = "tests/data/traces/gavel-throughputs.json";
  const std::string text = run(options).value();
  EXPECT_NE(text.find("gavel:objective=2"), std::string::npos) << text;
  EXPECT_NE(text.find("left out: 1 of 3 jobs"), std::string::npos) << text;
  options.trace = "";
  options.jobs = 5;
  EXPECT_TRUE(run(options).ok());
  options.elastic = 2;
  EXPECT_NE(run(options).error().what().find("--elastic"), std::string::npos);
}

TEST_F(Simulate, PolluxWorkloadsNeedTheirProfiles) {
  SimulateOptions options{.trace = "tests/data/traces/pollux.csv",
                          .profiles = "tests/data/traces/pollux-profiles",
                          .policies = {"fifo"},
                          .cost = "in-place"};
  EXPECT_TRUE(run(options).ok());
  options.profiles = "";
  EXPECT_NE(run(options).error().what().find("--profiles FOLDER"), std::string::npos);
}

TEST_F(Simulate, PolluxWorkloadsAsTheirSimulatorPlaysThem) {
  const SimulateOptions options{.trace = "tests/data/traces/pollux.csv",
                                .profiles = "tests/data/traces/pollux-profiles",
                                .policies = {"fifo", "pollux"},
                                .mode = "pollux-osdi21"};
  const std::string text = run(options).value();
  EXPECT_NE(text.find("fifo     restart"), std::string::npos) << text;
  EXPECT_NE(text.find("pollux   restart"), std::string::npos) << text;
  EXPECT_EQ(text.find("in-place"), std::string::npos) << text;
}

TEST_F(Simulate, RubickWorkloadsWithTheirCosts) {
  SimulateOptions options{.trace = "tests/data/traces/rubick.csv",
                          .profiles = "tests/data/traces/rubick-profiles",
                          .nodes = "1x4:A800",
                          .policies = {"fifo", "afs"},
                          .cost = "rubick",
                          .profiled = true};
  const std::string text = run(options).value();
  EXPECT_NE(text.find("afs      rubick   remaining work (oracle), speeds"), std::string::npos)
      << text;
  options.profiles = "";
  EXPECT_NE(run(options).error().what().find("(APPLICATION/placements.csv): --profiles FOLDER"),
            std::string::npos);
}

TEST_F(Simulate, ParametersAreSetByPolicy) {
  const auto error_of = [&](const std::string& words) {
    const auto ran = run({.trace = "tests/data/traces/rubato.csv",
                          .nodes = "1x4:T4,1x4:A100",
                          .policies = {"fifo", words},
                          .cost = "restart"});
    return ran.ok() ? "" : ran.error().what();
  };
  const std::string form = "expected NAME:PARAMETER=NUMBER";
  EXPECT_EQ(error_of("las:quantumSeconds=600"), "");
  for (const char* wrong : {"las:", "las:quantumSeconds", "las:quantumSeconds=6x", "las::"})
    EXPECT_NE(error_of(wrong).find(form), std::string::npos) << wrong;
  EXPECT_NE(error_of("las:quantum=1").find("parameters.quantum is not known to policy las"),
            std::string::npos);
  EXPECT_NE(error_of("las:quantumSeconds=nan"), "");
  EXPECT_EQ(error_of("las:quantumSeconds=1:quantumSeconds=2"),
            "policy \"las:quantumSeconds=1:quantumSeconds=2\": quantumSeconds stands twice; "
            "expected once");
}

TEST_F(Simulate, WhatCouldNeverRunIsSaidWithItsReason) {
  ASSERT_TRUE(replace_file(files_, folder_ + "/jobs.csv",
                           "id,queue,submit_s,gpus,duration_s,deadline_s\n"
                           "a\x1b[31m\xe9,q,0,4,60,100\nb,r,0,4,60,100\n")
                  .ok());
  ASSERT_TRUE(replace_file(files_, folder_ + "/queues.json",
                           R"([{"name":"q","quotas":[{"gpuType":"*","limit":0}]},{"name":"r"}])")
                  .ok());
  SimulateOptions options{.trace = folder_ + "/jobs.csv",
                          .nodes = "1x4:T4",
                          .policies = {"fifo"},
                          .cost = "restart",
                          .queues = folder_ + "/queues.json"};
  const std::string text = run(options).value();
  EXPECT_NE(text.find("left out: 1 of 2 jobs, which could never have their GPUs:\n"
                      "  a [31m?: asks for 4 GPUs; the most of one type that queue \"q\" lets it "
                      "have is 0\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("ON TIME\n"), std::string::npos) << text;
  EXPECT_NE(text.find("1 of 1\n"), std::string::npos) << text;
  options.only_queue = "q";
  EXPECT_NE(
      run(options).error().what().find("no job could ever have its GPUs; a [31m?: asks for 4 GPUs"),
      std::string::npos);
}

TEST_F(Simulate, WhereNoJobEverRunsItIsAnError) {
  ASSERT_TRUE(replace_file(files_, folder_ + "/jobs.csv",
                           "id,queue,submit_s,gpus,duration_s\na,q,0,4,60\nb,r,0,4,60\n")
                  .ok());
  ASSERT_TRUE(
      replace_file(files_, folder_ + "/queues.json", R"([{"name":"q","closed":true},{"name":"r"}])")
          .ok());
  SimulateOptions options{.trace = folder_ + "/jobs.csv",
                          .nodes = "1x4:T4",
                          .policies = {"fifo", "rubato"},
                          .cost = "restart",
                          .queues = folder_ + "/queues.json"};
  EXPECT_NE(run(options).value().find("1, 1 never"), std::string::npos);
  options.only_queue = "q";
  const auto none = run(options);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().what(),
            "no job ever ran, whatever the policy: queue \"q\" is closed; expected one that is not "
            "(--queues)");
}

TEST_F(Simulate, QueuesAreDrawnByWeightsThatAreNotAllZero) {
  ASSERT_TRUE(replace_file(files_, folder_ + "/queues.json",
                           R"([{"name":"a","weight":0},{"name":"b","weight":0}])")
                  .ok());
  const auto ran =
      run({.policies = {"fifo"}, .queues = folder_ + "/queues.json", .draw_queues = 1, .jobs = 2});
  ASSERT_FALSE(ran.ok());
  EXPECT_EQ(ran.error().what(),
            "--draw-queues: by their weights, which are all 0; expected one above 0");
}

TEST_F(Simulate, NodesFailWhereItIsSaid) {
  SimulateOptions options{.trace = "tests/data/traces/rubato.csv",
                          .nodes = "1x4:T4,1x4:A100",
                          .policies = {"fifo"},
                          .cost = "restart"};
  EXPECT_EQ(run(options).value().find("FAILURES"), std::string::npos);
  options.fail = "mtbf=1000";
  const std::string text = run(options).value();
  EXPECT_NE(text.find("FAILURES   LOST GPU h\n"), std::string::npos) << text;
  options.fail = "mtbf=often";
  EXPECT_EQ(run(options).error().what(),
            "--fail: \"mtbf=often\": expected mtbf=HOURS (from 0.01), repair=MINUTES (from 0), "
            "checkpoint=MINUTES (from 0.01) or seed=NUMBER (whole, from 0), each once and at most "
            "1000000, as in mtbf=720,repair=60");
  options.fail = "mtbf=1000";
  options.mode = "pollux-osdi21";
  EXPECT_EQ(run(options).error().what(),
            "--fail: in the mode pollux-osdi21 nodes do not fail; leave out --fail, or --mode "
            "pollux-osdi21");
}

TEST_F(Simulate, ErrorsSayWhatWasExpected) {
  EXPECT_NE(run({.policies = {"lifo"}}).error().what().find("no policy \"lifo\"; there are rub"),
            std::string::npos);
  EXPECT_NE(run({.nodes = "4:T4"}).error().what().find("--nodes: \"4:T4\": expected nodes x GPUs"),
            std::string::npos);
  EXPECT_EQ(run({.nodes = "60000x1:T4,60000x1:T4"}).error().what(),
            "--nodes: expected at most 100000 nodes in all");
  EXPECT_EQ(run({.trace = folder_ + "/none.csv"}).error().code(), Code::kNotFound);
}

TEST_F(Simulate, MadeJobsFollowTheirSeed) {
  const auto first = load_trace(files_, {.jobs = 5, .seed = 7}).value();
  const auto again = load_trace(files_, {.first = 3, .jobs = 5, .seed = 7}).value();
  EXPECT_EQ(first.size(), 5u);
  EXPECT_EQ(again.size(), 3u);
  EXPECT_EQ(first[2].submit_ms, again[2].submit_ms);
}

TEST_F(Simulate, ProgressSaysHowLongItTakes) {
  EXPECT_EQ(progress_line("fifo, restart", 40, 160, 5),
            "fifo, restart: 25 % of 160 jobs, 5s, 15s to go");
  EXPECT_EQ(progress_line("fifo, restart", 0, 160, 5), "fifo, restart: 0 % of 160 jobs, 5s");
  EXPECT_EQ(progress_line("fifo, restart", 0, 1, 5), "fifo, restart: 0 % of 1 job, 5s");
}

}  // namespace
}  // namespace rubato::ctl
