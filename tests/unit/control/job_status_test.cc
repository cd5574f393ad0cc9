#include "operator/control/job_status.h"

#include "operator/control/plan_executor.h"
#include "tests/unit/control/fixtures.h"

namespace rubato::control {
namespace {

using coordinator::Phase;

constexpr const char* kAllocated =
    R"("allocation":{"epoch":1,"nextOrdinal":2,"gpus":2,"reason":"free","pods":[
       {"name":"job-w0","ordinal":0,"node":"n1","gpuType":"A","gpus":1},
       {"name":"job-w1","ordinal":1,"node":"n2","gpuType":"A","gpus":1}]})";

coordinator::View view(Phase phase, std::uint32_t members) {
  coordinator::View v;
  v.phase = phase;
  v.generation = 1;
  for (std::uint32_t i = 0; i < members; ++i) {
    v.members.push_back({"job-w" + std::to_string(i), "p", "n", "A", 0, 0});
  }
  v.step = 41;
  v.loss = 3.18;
  v.step_seconds = 0.5;
  return v;
}

api::TrainingJobStatus status(const JobObject& object, std::optional<coordinator::View> v = {},
                              std::optional<sched::Verdict> verdict = {}) {
  JobFacts facts;
  facts.job = &object.job;
  facts.view = std::move(v);
  facts.verdict = std::move(verdict);
  facts.now = *parse_rfc3339("2026-11-21T08:00:00Z");
  return status_of(facts);
}

TEST(JobStatus, EveryWaitingJobSaysWhy) {
  const auto s = status(*job(2, 4), {},
                        sched::Verdict{sched::Outcome::kNever, "ExceedsCluster", "needs 2 GPUs"});
  EXPECT_EQ(s.state, "Queued");
  EXPECT_EQ(s.reason, "NeverFits");
  EXPECT_EQ(api::find_condition(s.conditions, "Queued")->message, "needs 2 GPUs");
  EXPECT_EQ(s.display->gpus, "0/2-4");
}

TEST(JobStatus, RunningShowsProgressSpeedAndEta) {
  const auto s = status(*job(2, 4, kAllocated), view(Phase::kTraining, 2));
  EXPECT_EQ(s.state, "Running");
  EXPECT_EQ(s.display->gpus, "2/2-4");
  EXPECT_EQ(s.display->progress, "41%");
  EXPECT_EQ(s.display->loss, "3.180");
  EXPECT_EQ(s.display->type, "A");
  EXPECT_EQ(s.display->tokens_per_second, "256");
  EXPECT_EQ(*s.progress->estimated_remaining_seconds, 29);
  ASSERT_EQ(s.performance->by_type.size(), 1u);
  EXPECT_EQ(s.performance->by_type[0].gpus, 2);
}

TEST(JobStatus, RecoveringAndDegradedAreSaid) {
  EXPECT_EQ(status(*job(2, 4, kAllocated), view(Phase::kRecovering, 2)).state, "Recovering");
  const auto s = status(*job(1, 4, kAllocated), view(Phase::kTraining, 1));
  EXPECT_TRUE(api::is_true(s.conditions, "Degraded"));
}

TEST(JobStatus, CompleteStays) {
  const auto s = status(*job(2, 4, kAllocated), view(Phase::kFinished, 2));
  EXPECT_EQ(s.state, "Complete");
  EXPECT_TRUE(s.completion_time.has_value());
  EXPECT_FALSE(api::is_true(s.conditions, "Running"));
}

TEST(JobStatus, ARescaleIsCountedOnceEvenByANewLeader) {
  auto v = view(Phase::kTraining, 2);
  v.changes.push_back({.generation = 5,
                       .kind = "join",
                       .reason = "epoch 2",
                       .from = 1,
                       .to = 2,
                       .stall_seconds = 0.25});
  const auto first = status(*job(2, 4, kAllocated), v);
  ASSERT_TRUE(first.rescales.has_value());
  EXPECT_EQ(first.rescales->count, 1);
  JobObject again = *job(2, 4, kAllocated);
  again.job.status.rescales = first.rescales;
  EXPECT_EQ(status(again, v).rescales->count, 1);
}

TEST(Allocation, OrdinalsAreNeverReused) {
  const auto object = job(2, 4, kAllocated);
  sched::Action action;
  action.remove = {1};
  action.add = {{"n3", "A", 1}};
  action.reason = "why";
  const auto next = allocation_after(object->job, action, 4, {});
  EXPECT_EQ(next.epoch, 2);
  ASSERT_EQ(next.pods.size(), 2u);
  EXPECT_EQ(next.pods[1].name, "job-w2");
  EXPECT_EQ(next.next_ordinal, 3);
  EXPECT_EQ(next.gpus, 2);
  EXPECT_EQ(*next.leader_transition, 4);
}

}  // namespace
}  // namespace rubato::control
