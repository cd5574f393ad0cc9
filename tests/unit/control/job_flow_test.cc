#include "operator/control/job_flow.h"

#include "common/exposition.h"
#include "operator/control/cluster_series.h"
#include "tests/unit/control/fixtures.h"

namespace rubato::control {
namespace {

constexpr const char* kQueued =
    R"("conditions":[{"type":"Queued","status":"True","reason":"WaitingForGPUs","message":"m",
       "lastTransitionTime":"2026-11-21T07:00:10Z"}])";
constexpr const char* kPlaced =
    R"("allocation":{"epoch":1,"nextOrdinal":1,"gpus":1,"since":"2026-11-21T07:00:40Z",
       "pods":[{"name":"job-w0","ordinal":0,"node":"n1","gpuType":"A","gpus":1}]},
       "conditions":[{"type":"Queued","status":"False","reason":"Placed","message":"m"}])";

JobDifference between(const std::string& before, const std::string& after) {
  return difference(job(1, 2, before)->job, job(1, 2, after)->job);
}

TEST(JobFlow, NothingIsCountedOfTheSameStateTwice) {
  EXPECT_EQ(between(kPlaced, kPlaced), JobDifference{});
}

TEST(JobFlow, AJobWaitsFromQueuedOrItsCreationToItsAllocation) {
  EXPECT_EQ(between(kQueued, kPlaced).waited_seconds, 30.0);
  EXPECT_EQ(between("", kPlaced).waited_seconds, 40.0);
  EXPECT_EQ(between(kPlaced, kPlaced).waited_seconds, std::nullopt);
}

TEST(JobFlow, TheFirstStepIsSeenOnce) {
  const std::string started = std::string(kPlaced) + R"(,"startTime":"2026-11-21T07:01:00Z")";
  EXPECT_EQ(between(kPlaced, started).first_step_seconds, 60.0);
  EXPECT_EQ(between(started, started).first_step_seconds, std::nullopt);
}

// Its startTime is another one then.
TEST(JobFlow, TheFirstStepAfterAResumeIsNotThatOfTheJob) {
  const std::string resumed = std::string(kPlaced) + R"(,"usefulGPUSeconds":9)";
  EXPECT_EQ(between(resumed, resumed + R"(,"startTime":"2026-11-21T09:00:00Z")").first_step_seconds,
            std::nullopt);
  const std::string waits = std::string(kPlaced) + R"(,"usefulGPUSeconds":0)";
  EXPECT_EQ(between(waits, waits + R"(,"startTime":"2026-11-21T07:01:00Z")").first_step_seconds,
            60.0);
}

TEST(JobFlow, AnEvictionHasTheReasonOfTheWaitThatFollows) {
  const auto with = [](const std::string& reason) {
    return R"("conditions":[{"type":"Queued","status":"True","reason":")" + reason +
           R"(","message":"m"}])";
  };
  EXPECT_EQ(between(kPlaced, with("Preempted")).evicted, "Preempted");
  EXPECT_EQ(between(kPlaced, with("SomethingNew")).evicted, "Other");
  EXPECT_EQ(between("", kQueued).evicted, "");  // it never had any
}

// Neither what is written of it now, nor what an earlier release wrote.
TEST(JobFlow, AResumeIsNoEviction) {
  for (const char* reason : {"Suspended", "Placed"}) {
    const std::string suspended =
        R"("conditions":[{"type":"Suspended","status":"True","reason":"Suspended","message":"m"},
           {"type":"Queued","status":"False","reason":")" +
        std::string(reason) + R"(","message":"suspended"}])";
    EXPECT_EQ(between(suspended, kQueued).evicted, "") << reason;
  }
}

TEST(JobFlow, ReasonsAreCountedByName) {
  for (const char* known : {"ClaimLost", "DataDamaged", "DataUnreadable", "CheckpointPathTaken"})
    EXPECT_EQ(bounded_reason(known), known);  // tests/runbook holds the list to be whole
  EXPECT_EQ(bounded_reason("Placed"), "Other");
}

TEST(JobFlow, AnEndIsCountedByReason) {
  const auto ended = between(
      kPlaced,
      R"("conditions":[{"type":"Failed","status":"True","reason":"NonFinite","message":"m"}])");
  EXPECT_EQ(ended.ended_state, "Failed");
  EXPECT_EQ(ended.ended_reason, "NonFinite");
}

double value(const Metrics& metrics, const std::string& series) {
  const std::string text = metrics.expose();
  const auto at = text.find(series + " ");
  return at == std::string::npos ? -1 : std::stod(text.substr(at + series.size()));
}

TEST(JobFlow, GpuTimeThatIsBookedAnewNeverLowersACounter) {
  Metrics metrics;
  JobFlow flow(metrics);
  const auto spent = [](int useful, int failure) {
    return job(1, 2,
               R"("usefulGPUSeconds":)" + std::to_string(useful) +
                   R"(,"lostGPUSeconds":{"queue":0,"rescale":0,"failure":)" +
                   std::to_string(failure) + R"(,"checkpoint":0})");
  };
  const std::string useful = R"(rubato_gpu_seconds_total{queue="default",use="useful"})";
  const std::string failure = R"(rubato_gpu_seconds_total{queue="default",use="failure"})";
  flow.note(job(1, 2)->job, spent(10, 0)->job);
  EXPECT_EQ(value(metrics, useful), 10);
  flow.note(spent(10, 0)->job, spent(7, 4)->job);
  EXPECT_EQ(value(metrics, useful), 10);
  EXPECT_EQ(value(metrics, failure), 4);
  flow.note(spent(7, 4)->job, spent(12, 4)->job);
  EXPECT_EQ(value(metrics, useful), 12);  // 10 were shown, 12 are so
}

TEST(JobFlow, StepsThatAreTrainedAgainAreCounted) {
  Metrics metrics;
  JobFlow flow(metrics);
  const auto with = [](std::int64_t steps) {
    api::TrainingJob job_then = job(1, 2)->job;
    job_then.status.progress.emplace().recomputed_steps = steps;
    return job_then;
  };
  flow.note(job(1, 2)->job, with(2));
  flow.note(with(2), with(7));
  flow.note(with(7), with(7));
  EXPECT_EQ(value(metrics, "rubato_recomputed_steps_total{queue=\"default\"}"), 7);
}

TEST(JobFlow, ManyQueuesShareOneSeries) {
  Metrics metrics;
  JobFlow flow(metrics);
  for (std::size_t i = 0; i < kQueuesWithSeries + 5; ++i) {
    api::TrainingJob before = job(1, 2)->job;
    before.spec.queue = "q" + std::to_string(i);
    api::TrainingJob after = before;
    after.status.restarts = api::Restarts{.count = 1};
    flow.note(before, after);
  }
  EXPECT_EQ(value(metrics, "rubato_restarts_total{charged=\"true\",queue=\"(other)\"}"), 5);
}

}  // namespace
}  // namespace rubato::control
