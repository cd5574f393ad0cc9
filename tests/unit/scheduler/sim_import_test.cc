// Importers on the hand-made samples of tests/data/traces, and on real ones where they are at hand.
#include "common/files.h"
#include "common/rng.h"
#include "scheduler/sim/import/generate.h"
#include "scheduler/sim/import/importers.h"
#include "tests/unit/scheduler/sim_traces.h"

#include <filesystem>

#include <gtest/gtest.h>

namespace rubato::sched::sim {
namespace {

// Tests run in the root of the source.
std::string text_of(const std::string& path) {
  PosixFileSystem files;
  auto text = read_text(files, path, 64u << 20);
  EXPECT_TRUE(text.ok()) << text.error().what();
  return text.value_or("");
}
std::string sample(const std::string& name) { return text_of("tests/data/traces/" + name); }

std::string import_error_of(const std::string& text) {
  const auto read = read_rubato({"t.csv", text});
  return read.ok() ? "" : read.error().what();
}

TEST(SimImport, OurOwnFormat) {
  const std::string text = sample("rubato.csv");
  EXPECT_EQ(format_of({"r", text}).value(), TraceFormat::kRubato);
  const auto jobs = read_rubato({"r", text}).value();
  ASSERT_EQ(jobs.size(), 4u);
  EXPECT_EQ(jobs[0].id, "short");
  EXPECT_EQ(jobs[0].request, 2);
  EXPECT_EQ(jobs[0].max, 2);
  EXPECT_EQ(jobs[0].work, 60);
  EXPECT_EQ(jobs[0].speed.at("anything", 2), 1.0);
  EXPECT_EQ(jobs[1].submit_ms, 5500);
  EXPECT_EQ(jobs[1].priority, 1);
  EXPECT_EQ(jobs[1].min, 1);
  EXPECT_EQ(jobs[1].max, 4);
  EXPECT_EQ(jobs[1].allow, std::vector<std::string>{"T4"});
  EXPECT_EQ(jobs[1].speed.at("T4", 4), 30);
  EXPECT_FALSE(jobs[1].speed.runs_on("A100"));
  EXPECT_EQ(jobs[2].id, "job-000005");  // by its line
  EXPECT_EQ(jobs[2].allow.size(), 2u);
  EXPECT_EQ(jobs[3].id, "quoted name");
  EXPECT_EQ(jobs[3].queue, "default");
  const std::string marked = "\xef\xbb\xbf" + text;  // as some programs for tables save it
  EXPECT_EQ(format_of({"r", marked}).value(), TraceFormat::kRubato);
  EXPECT_EQ(read_rubato({"r", marked}).value().size(), 4u);
}

TEST(SimImport, ADeadlineIsSinceTheTracesZero) {
  const auto jobs =
      read_rubato({"t", "submit_s,gpus,duration_s,deadline_s\n5,1,10,20.5\n6,1,10,\n"}).value();
  EXPECT_EQ(jobs[0].deadline_ms, 20'500);
  EXPECT_EQ(jobs[1].deadline_ms, std::nullopt);
  EXPECT_NE(import_error_of("submit_s,gpus,duration_s,deadline_s\n5,1,10,soon\n")
                .find("column deadline_s"),
            std::string::npos);
}

TEST(SimImport, TrafficIsInGib) {
  const auto jobs =
      read_rubato({"t", "submit_s,gpus,duration_s,traffic_gib_s\n5,1,10,1.5\n6,1,10,\n"}).value();
  EXPECT_EQ(jobs[0].traffic, 1.5 * (1 << 30));
  EXPECT_EQ(jobs[1].traffic, 0);
  EXPECT_NE(
      import_error_of("submit_s,gpus,duration_s,traffic_gib_s\n5,1,10,-1\n").find("traffic_gib_s"),
      std::string::npos);
}

TEST(SimImport, ADataSetHasASizeAndARate) {
  const auto jobs = read_rubato({"t",
                                 "submit_s,gpus,duration_s,dataset,dataset_gib,reads_gib_s\n"
                                 "5,1,10,images,2,0.5\n6,1,10,,,\n"})
                        .value();
  EXPECT_EQ(jobs[0].dataset, (Dataset{"images", Bytes{2} << 30U, Bytes{1} << 29U}));
  EXPECT_FALSE(jobs[1].dataset.has_value());
  EXPECT_NE(
      import_error_of("submit_s,gpus,duration_s,dataset_gib\n5,1,10,1\n").find("without dataset"),
      std::string::npos);
}

TEST(SimImport, SensitivityIsATable) {
  const auto jobs =
      read_rubato({"t", "submit_s,gpus,duration_s,sensitivity\n5,1,10,2:50=0.5;4:100=1\n6,1,10,\n"})
          .value();
  EXPECT_EQ(jobs[0].sensitivity, (std::vector<SensitivityPoint>{{{2000, Bytes{50} << 30U}, 0.5},
                                                                {{4000, Bytes{100} << 30U}, 1}}));
  EXPECT_TRUE(jobs[1].sensitivity.empty());
  for (const char* bad : {"2:50", "2=1", "2:50=2", "0:1=1", "2:50=1;"})
    EXPECT_NE(
        import_error_of(std::string("submit_s,gpus,duration_s,sensitivity\n5,1,10,") + bad + "\n")
            .find("column sensitivity"),
        std::string::npos)
        << bad;
}

TEST(SimImport, ErrorsNameLineColumnAndWhatWasExpected) {
  EXPECT_EQ(import_error_of("id,submit_s,gpus,duration_s\na,0,two,10\n"),
            "t.csv:2: column gpus: \"two\": expected a whole number from 1 to 1048576");
  EXPECT_EQ(import_error_of("submit_s,gpus,duration_s\n\n# a comment\n0,1\n"),
            "t.csv:4: has 2 cells; expected 3, as in the header");
  EXPECT_NE(
      import_error_of("submit_s,gpu\n0,1\n").find("t.csv:1: column \"gpu\": expected one of id,"),
      std::string::npos);
  EXPECT_EQ(import_error_of("id,gpus\na,1\n"),
            "t.csv:1: expected a column \"submit_s\" in the header");
  for (const char* bad : {"T4=3", "T4:1=nan", "T4:1=inf", "T4:1=-1", "T4:1=1e-310;T4:8=10"})
    EXPECT_NE(import_error_of(std::string("submit_s,gpus,work,throughput\n0,1,5,") + bad + "\n")
                  .find("column throughput"),
              std::string::npos)
        << bad;
  EXPECT_NE(import_error_of("submit_s,min_gpus,max_gpus,duration_s\n0,1,4,60\n")
                .find("expected work and throughput, because min_gpus and max_gpus differ"),
            std::string::npos);
  EXPECT_NE(import_error_of("submit_s,gpus,duration_s\n-1,1,60\n").find("column submit_s"),
            std::string::npos);
  EXPECT_NE(import_error_of("submit_s,gpus,duration_s\n0,1,\"60\n").find("t.csv:2: a quote"),
            std::string::npos);
  EXPECT_NE(
      import_error_of("id,submit_s,gpus,duration_s\na,0,1,1\na,0,1,1\n").find("t.csv:3: column id"),
      std::string::npos);
  EXPECT_NE(import_error_of("").find("t.csv:1: expected a header"), std::string::npos);
  EXPECT_EQ(format_of({"x", "a,b\n"}).error().code(), Code::kInvalid);
}

TEST(SimImport, PhillyBeginsAtItsFirstTimestamp) {
  const std::string text = sample("philly.csv");
  EXPECT_EQ(format_of({"p", text}).value(), TraceFormat::kPhilly);
  const auto jobs = read_philly({"p", text}).value();
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0].submit_ms, 0);
  EXPECT_EQ(jobs[1].submit_ms, 20'000);  // over a leap day
  EXPECT_EQ(jobs[1].queue, "vc-two");
  EXPECT_EQ(jobs[0].request, 2);
  EXPECT_EQ(jobs[0].work, 120);
  const auto bad = read_philly(
      {"p", "timestamp,duration,num_gpus,gpu_time,cluster\n2020-13-01 00:00:00,1,1,1,a\n"});
  EXPECT_NE(bad.error().what().find("p:2: column timestamp"), std::string::npos);
}

TEST(SimImport, Itp) {
  const std::string text = sample("itp.csv");
  EXPECT_EQ(format_of({"i", text}).value(), TraceFormat::kItp);
  const auto jobs = read_itp({"i", text}).value();
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[1].submit_ms, 3'000);
  EXPECT_GT(jobs[1].work, 0);
}

struct TinyPollux {
  const std::string folder = "pollux-profiles/tiny/";
  const std::string workload = sample("pollux.csv");
  const std::string placements = sample(folder + "placements.csv");
  const std::string scalability = sample(folder + "scalability.csv");
  const std::string of_64 = sample(folder + "validation-64.csv");
  const std::string of_128 = sample(folder + "validation-128.csv");

  PolluxProfile profile(const std::string& with_placements,
                        const std::string& with_epochs_of_128) const {
    return {{"placements.csv", with_placements},
            {"scalability.csv", scalability},
            {{64, {"v64", of_64}}, {128, {"v128", with_epochs_of_128}}}};
  }
};

TEST(SimImport, PolluxWorkloadsTakeTheirSpeedsFromProfiles) {
  const TinyPollux files;
  const std::string& workload = files.workload;
  EXPECT_EQ(format_of({"w", workload}).value(), TraceFormat::kPollux);
  EXPECT_EQ(applications_in({"w", workload}).value(), std::vector<std::string>{"tiny"});
  PolluxProfile tiny = files.profile(files.placements, files.of_128);
  const auto jobs = read_pollux({"w", workload}, {{"tiny", tiny}}).value();
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0].work, 1000);
  EXPECT_EQ(jobs[0].request, 2);
  EXPECT_EQ(jobs[0].min, 1);
  EXPECT_EQ(jobs[0].max, 64);
  // On 2 GPUs 32 each: 0.45 s. On 4, 16 each: 0.3 s. On 1, 64: two passes of 32, without sync: 0.8.
  EXPECT_NEAR(jobs[0].speed.at("T4", 2), 1 / 0.45, 1e-12);
  EXPECT_NEAR(jobs[0].speed.at("T4", 4), 1 / 0.3, 1e-12);
  EXPECT_NEAR(jobs[0].speed.at("T4", 1), 1 / 0.8, 1e-12);
  // On 32 the fewest nodes measured.
  EXPECT_NEAR(jobs[0].speed.at("T4", 32), 1 / 0.8, 1e-12);
  tiny.placements.text = "placement,local_bsz,step_time,sync_time\n1,1,1,2\n";
  EXPECT_NE(read_pollux({"w", workload}, {{"tiny", tiny}}).error().what().find("column sync_time"),
            std::string::npos);
  tiny = files.profile(files.placements, files.of_128);
  tiny.validation.erase(128);
  EXPECT_NE(
      read_pollux({"w", workload}, {{"tiny", tiny}}).error().what().find("w:3: column batch_size"),
      std::string::npos);
}

// The squares and variances of the sample are 1: on 1 GPU a batch of 64 in two passes of 32, 0.8 s.
TEST(SimImport, PolluxWorkloadsWithTheirBatches) {
  const TinyPollux files;
  const std::string& workload = files.workload;
  const auto read = [&](const std::string& of_placements, const std::string& of_epochs) {
    return read_pollux_batches({"w", workload},
                               {{"tiny", files.profile(of_placements, of_epochs)}});
  };
  const auto jobs = read(files.placements, files.of_128).value();
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0].work, 20);
  EXPECT_EQ(jobs[0].max, 8);  // 128 in parts of 16
  ASSERT_TRUE(jobs[0].training);
  const Application& tiny = *jobs[0].training->application;
  EXPECT_EQ(&tiny, jobs[1].training->application.get());
  EXPECT_EQ(tiny.limits.first_batch, 64);
  EXPECT_EQ(tiny.limits.max_batch, 128);
  EXPECT_EQ(tiny.limits.min_local, 16);
  EXPECT_EQ(tiny.limits.max_local, 32);
  EXPECT_EQ(tiny.spreads.size(), 9u);
  EXPECT_TRUE(jobs[0].training->adapts);
  EXPECT_EQ(jobs[0].training->fixed_max, 4);
  EXPECT_NEAR(jobs[0].training->fixed_speed.at("T4", 1), 1 / 0.8, 1e-12);
  // 64 in 0.3 s on 4; 128 would be worth 4/3 in 0.5 s.
  EXPECT_NEAR(jobs[0].speed.at("T4", 4), 1 / 0.3, 1e-12);
  const auto error = [&](const std::string& of_placements, const std::string& of_epochs) {
    const auto bad = read(of_placements, of_epochs);
    return bad.ok() ? "" : std::string(bad.error().what());
  };
  const std::string header = "placement,local_bsz,step_time,sync_time\n";
  EXPECT_NE(error(header, files.of_128).find("expected a row for each placement"),
            std::string::npos);
  EXPECT_NE(error(header + "01,1,1,0\n", files.of_128).find("column placement"), std::string::npos);
  EXPECT_NE(error(header + "1,1,1,2\n", files.of_128).find("column sync_time"), std::string::npos);
  const std::string epochs = "progress,iteration,metric,grad_sqr,grad_var\n";
  EXPECT_NE(error(files.placements, epochs).find("a row for each epoch"), std::string::npos);
  EXPECT_NE(
      error(files.placements, epochs + "2,1,1,1,1\n1,1,1,1,1\n").find("v128:3: column progress"),
      std::string::npos);
}

// tiny-0 asks for 2 GPUs and plan ga: 1.25 s on one node. The best plans take 2 s on 1 GPU, 1 s on
// 2, 0.5 s on 4; nothing is faster on 8, and nothing was measured on 3.
TEST(SimImport, RubickWorkloadsHaveTheirOwnPlanOrTheBest) {
  const std::string workload = sample("rubick.csv");
  const std::string placements = sample("rubick-profiles/tiny/placements.csv");
  EXPECT_EQ(format_of({"w", workload}).value(), TraceFormat::kRubick);
  EXPECT_EQ(applications_in({"w", workload}).value(), std::vector<std::string>{"tiny"});
  const auto jobs = read_rubick({"w", workload}, {{"tiny", {"p", placements}}}).value();
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0].request, 2);
  EXPECT_EQ(jobs[0].min, 1);
  EXPECT_EQ(jobs[0].max, 4);
  EXPECT_EQ(jobs[0].work, 100);
  EXPECT_EQ(jobs[0].profile, "tiny");
  EXPECT_EQ(jobs[0].queue, "best-effort");
  EXPECT_EQ(jobs[0].request_speed, 1 / 1.25);
  EXPECT_EQ(jobs[0].speed.at("A800", 1), 0.5);
  EXPECT_EQ(jobs[0].speed.at("A800", 2), 1);
  EXPECT_EQ(jobs[0].speed.at("A800", 3), 1);
  EXPECT_EQ(jobs[0].speed.at("A800", 4), 2);
  EXPECT_EQ(jobs[1].submit_ms, 30'500);
  EXPECT_EQ(jobs[1].queue, "guaranteed");
  EXPECT_EQ(jobs[1].request_speed, 1 / 0.8);
}

TEST(SimImport, RubickWorkloadsNameWhatIsWrong) {
  const std::string workload = sample("rubick.csv");
  const auto error = [&](const std::string& placements) {
    return read_rubick({"w", workload}, {{"tiny", {"p", placements}}}).error().what();
  };
  EXPECT_EQ(error("exec_plan,placement,iter_time\nga,2,1\n"),
            "w:4: column exec_plan: \"122\": expected one that was measured of tiny on 4 GPUs");
  EXPECT_EQ(error("exec_plan,placement,iter_time\nga,2x,1\n"),
            "p:2: column placement: \"2x\": expected a digit for each node, its GPUs, as in 44");
  EXPECT_EQ(error("exec_plan,placement,iter_time\n"), "p:2: expected a row for each plan");
  EXPECT_EQ(read_rubick({"w", workload}, {}).error().what(),
            "w:3: column application: \"tiny\": expected one with a profile: a folder of "
            "--profiles");
}

TEST(SimImport, PoissonTracesFollowTheirSeed) {
  const auto a = poisson_trace({.seed = 3, .jobs = 2000, .jobs_per_hour = 60});
  const auto b = poisson_trace({.seed = 3, .jobs = 2000, .jobs_per_hour = 60});
  const auto c = poisson_trace({.seed = 4, .jobs = 2000, .jobs_per_hour = 60});
  EXPECT_EQ(a.back().submit_ms, b.back().submit_ms);
  EXPECT_NE(a.back().submit_ms, c.back().submit_ms);
  EXPECT_NEAR(static_cast<double>(a.back().submit_ms) / 2000.0, 60'000, 5'000);  // one a minute
  const auto elastic = poisson_trace({.jobs = 10, .elastic_factor = 4});
  EXPECT_EQ(elastic[0].max, elastic[0].request * 4);
  EXPECT_NEAR(elastic[0].speed.at("A", elastic[0].request), 1.0, 1e-9);
}

TEST(SimImport, GavelsTablesSayWhereAModelRuns) {
  const std::string table = sample("gavel-throughputs.json");
  const GavelSpeeds speeds = read_gavel_speeds({"t", table}).value();
  EXPECT_EQ(speeds.alone.at("Big (batch size 16)").at(1),
            (std::map<std::string, double>{{"k80", 2}, {"v100", 10}}));
  EXPECT_EQ(speeds.alone.at("Big (batch size 16)").at(2).count("k80"), 0u);  // a rate of 0
  EXPECT_NE(read_gavel_speeds({"t", R"({"v100": {"Big": {"null": 1}}})"})
                .error()
                .what()
                .find("t: v100: \"Big\": expected ('MODEL', GPUS)"),
            std::string::npos);
  // Beside "Small" it does 4 of its 10 steps; of a pair with itself nothing is said.
  const SharingProfile& shared = speeds.sharing.at("Big (batch size 16)").at(1);
  EXPECT_EQ(*shared.measured, (SharingProfile::Measured{{{"Small", "v100"}, 0.4}}));
  EXPECT_EQ(shared.use, (GpuUse{.busy = 0.05, .memory = 0, .beside_another = 0.4}));
  EXPECT_FALSE(read_gavel_speeds({"t", "[]"}).ok());
  EXPECT_FALSE(read_gavel_speeds({"t", "{"}).ok());
}

TEST(SimImport, GavelsTraces) {
  const std::string table = sample("gavel-throughputs.json");
  const std::string text = sample("gavel.trace");
  const GavelSpeeds speeds = read_gavel_speeds({"t", table}).value();
  EXPECT_EQ(format_of({"g", text}).value(), TraceFormat::kGavel);
  const auto jobs = read_gavel({"g", text}, speeds).value();
  ASSERT_EQ(jobs.size(), 3u);
  EXPECT_EQ(jobs[1].submit_ms, 2'500);
  EXPECT_EQ(jobs[1].min, 2);
  EXPECT_EQ(jobs[1].max, 2);
  EXPECT_EQ(jobs[1].profile, "Big (batch size 16)");
  EXPECT_EQ(jobs[1].speed.at("v100", 2), 18);
  EXPECT_FALSE(jobs[1].speed.runs_on("k80"));
  // 1 000 steps at 10 a second, 360 at 18, each after a start of 10 s; the third has no speed.
  const SimResult played = play("1x4:v100,1x4:k80", {jobs[0], jobs[1]}, "fifo");
  EXPECT_NEAR(finish_s(played, "gavel-000002"), 2.5 + 10 + 20, 0.01);
  EXPECT_TRUE(jobs[2].speed.points().empty());
  const auto scheduler = scheduler_named("fifo");
  const auto all = simulate(parse_cluster("1x4:v100").value(), jobs, **scheduler, {}).value();
  ASSERT_EQ(all.refused.size(), 1u);
  EXPECT_EQ(all.refused[0].id, "gavel-000003");
  EXPECT_EQ(read_gavel({"g", "A\tc\t-n\t1\t10\t0\n"}, speeds).error().what(),
            "g:1: has 6 cells; expected 7, with tabs between them");
  EXPECT_EQ(read_gavel({"g", "A\tc\t-n\t1\tten\t0\t1\n"}, speeds).error().what(),
            "g:1: column 5: \"ten\": expected steps, a whole number from 1 to 1000000000000");
  // As a terminal shows it.
  EXPECT_EQ(read_gavel({"g", "A\tc\t-n\t1\t\x1b[2J\t0\t1\n"}, speeds).error().what(),
            "g:1: column 5: \" [2J\": expected steps, a whole number from 1 to 1000000000000");
}

TEST(SimImport, GavelsTracesMayHaveCommentsAndEndsOfLinesAsOnWindows) {
  const GavelSpeeds speeds = read_gavel_speeds({"t", sample("gavel-throughputs.json")}).value();
  std::string text = "\xef\xbb\xbf# a comment\r\n\r\n";
  for (const char c : sample("gavel.trace")) text += c == '\n' ? "\r\n" : std::string(1, c);
  EXPECT_EQ(format_of({"g", text}).value(), TraceFormat::kGavel);
  const auto jobs = read_gavel({"g", text}, speeds).value();
  ASSERT_EQ(jobs.size(), 3u);
  EXPECT_EQ(jobs[0].id, "gavel-000003");  // by its line
  EXPECT_EQ(jobs[2].request, 4);
}

TEST(SimImport, ASecondJobOfOneIdIsNamedByItsLine) {
  const auto error = [](const Result<std::vector<TraceJob>>& read) {
    return read.ok() ? "" : read.error().what();
  };
  const std::string expected = "expected an id that no other job has";
  EXPECT_EQ(error(read_itp({"i", "job_id,submission_time,duration,num_gpu\na,0,60,1\na,5,60,1\n"})),
            "i:3: column job_id: \"a\": " + expected);
  const std::string plans = sample("rubick-profiles/tiny/placements.csv");
  const std::string rubick = sample("rubick.csv") + "tiny-0,0,999,tiny,2,16,0,ga,100,0\n";
  EXPECT_EQ(error(read_rubick({"r", rubick}, {{"tiny", {"p", plans}}})),
            "r:5: column name: \"tiny-0\": " + expected);
  const TinyPollux files;
  const std::string pollux = files.workload + "tiny-0,7,tiny,2,64\n";
  const auto profile = files.profile(files.placements, files.of_128);
  EXPECT_EQ(error(read_pollux({"w", pollux}, {{"tiny", profile}})),
            "w:4: column name: \"tiny-0\": " + expected);
  EXPECT_EQ(error(read_pollux_batches({"w", pollux}, {{"tiny", profile}})),
            "w:4: column name: \"tiny-0\": " + expected);
}

TEST(SimImport, NamesMayHaveCommasAndQuotes) {
  const auto jobs =
      read_rubato({"t", "id,queue,submit_s,gpus,duration_s\n\"a,b\",\"c\"\"d\",0,1,60\n"}).value();
  EXPECT_EQ(jobs[0].id, "a,b");
  EXPECT_EQ(jobs[0].queue, "c\"d");
}

TEST(SimImport, MadeJobsAreOfGavelsModels) {
  const std::string table = sample("gavel-throughputs.json");
  const GavelSpeeds speeds = read_gavel_speeds({"t", table}).value();
  const auto jobs = gavel_trace({.seed = 3, .jobs = 500}, speeds).value();
  const auto plain = poisson_trace({.seed = 3, .jobs = 1});
  EXPECT_EQ(jobs[0].submit_ms, plain[0].submit_ms);
  EXPECT_EQ(jobs[0].request, plain[0].request);
  std::map<std::string, int> of_one_gpu;
  for (const TraceJob& job : jobs) {
    if (job.request == 1) ++of_one_gpu[job.profile];
    EXPECT_TRUE(job.request == 1 || job.profile != "Small");  // that was measured on one GPU only
    EXPECT_GT(job.work / job.speed.at("v100", job.request), 60 * 31);
    EXPECT_LT(job.work / job.speed.at("v100", job.request), 60 * 10'001);
  }
  EXPECT_NEAR(of_one_gpu["Small"], of_one_gpu["Big (batch size 16)"], 60);
  EXPECT_FALSE(gavel_trace({}, {.alone = {{"A", {{1, {{"v100", 1}}}}}}}).ok());  // none on 2
}

// Damaged files are refused in words, or are traces that play: never a crash.
TEST(SimImport, DamagedTracesNeverCrash) {
  Rng rng(11);
  int played = 0;
  for (const char* name : {"rubato.csv", "philly.csv", "itp.csv", "gavel.trace"}) {
    const std::string whole = sample(name);
    const std::string table = sample("gavel-throughputs.json");
    for (int i = 0; i < 400; ++i) {
      std::string text = whole;
      for (std::uint64_t k = rng.below(3) + 1; k > 0; --k) {
        const std::size_t at = rng.below(text.size());
        constexpr std::string_view kBytes = "0912eE-+.,;:=\"\n*xa";
        text[at] = kBytes[rng.below(kBytes.size())];
      }
      const TraceText trace{name, text};
      const auto jobs = std::string_view(name) == "rubato.csv"   ? read_rubato(trace)
                        : std::string_view(name) == "philly.csv" ? read_philly(trace)
                        : std::string_view(name) == "itp.csv"
                            ? read_itp(trace)
                            : read_gavel(trace, read_gavel_speeds({"t", table}).value());
      if (!jobs.ok()) {
        EXPECT_TRUE(jobs.error().what().starts_with(name)) << jobs.error().what();
        continue;
      }
      const auto scheduler = scheduler_named("srsf");
      const auto result =
          simulate(parse_cluster("2x4:T4,1x4:A100").value(), *jobs, **scheduler, {});
      if (result.ok()) ++played;
    }
  }
  EXPECT_GT(played, 100);
}

TEST(SimImport, WhatTakesForEverIsRefused) {
  const auto scheduler = scheduler_named("fifo");
  TraceJob slow = rigid("slow", 0, 1, 1);
  slow.speed = {};
  slow.speed.add("*", {1, 1e-11});
  const auto result = simulate(parse_cluster("1x1:A").value(), {slow}, **scheduler, {});
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().what().find("job slow: trains for 1e+11 s"), std::string::npos);
  // A thousandth of a unit an hour is slow, and right to a part in 10^5.
  slow.work = 0.01;
  slow.speed.add("*", {1, 1.0 / 3.6e6});
  const SimResult played = play("1x1:A", {slow}, "fifo");
  EXPECT_NEAR(finish_s(played, "slow"), 10 + 36'000, 0.4);
}

// Data files of others, beside the checkout; never part of it.
TEST(SimImport, RealTracesAreRead) {
  const std::string data = "../shared/data/";
  if (!std::filesystem::exists(data)) GTEST_SKIP() << data << " is not there";
  const std::string table = text_of(data + "gavel/simulation_throughputs.json");
  const GavelSpeeds speeds = read_gavel_speeds({"table", table}).value();
  EXPECT_EQ(speeds.alone.size(), 26u);
  const std::string gavel = text_of(data + "gavel/traces/2869ce.trace");
  EXPECT_GT(read_gavel({"gavel", gavel}, speeds).value().size(), 500u);
  const std::string philly = text_of(data + "pollux/traces/philly.csv");
  EXPECT_EQ(read_philly({"philly.csv", philly}).value().size(), 82'247u);
  const std::string itp = text_of(data + "itp/cluster01.csv");
  EXPECT_EQ(read_itp({"cluster01.csv", itp}).value().size(), 1'595u);
}

}  // namespace
}  // namespace rubato::sched::sim
