#include "operator/control/job_status.h"

#include "operator/control/plan_executor.h"
#include "tests/unit/control/status_facts.h"

namespace rubato::control {
namespace {

using coordinator::Phase;

TEST(JobStatus, EveryWaitingJobSaysWhy) {
  const auto s = status(*job(2, 4), {},
                        JobVerdict{sched::Outcome::kNever,
                                   sched::Reason::kExceedsCluster,
                                   {"ExceedsCluster", "needs 2 GPUs"}});
  EXPECT_EQ(s.state, "Queued");
  EXPECT_EQ(s.reason, "NeverFits");
  EXPECT_EQ(api::find_condition(s.conditions, "Queued")->message, "needs 2 GPUs");
  EXPECT_EQ(s.display->gpus, "0/2-4");
}

TEST(JobStatus, AJobThatAvoidsNodesWaitsForThemAndNotForGpus) {
  for (const auto why : {sched::Reason::kNodesAvoided, sched::Reason::kEveryNodeAvoided}) {
    const auto s = status(*job(2, 4), {}, JobVerdict{sched::Outcome::kNotNow, why, {"", "n2"}});
    EXPECT_EQ(s.reason, "NodesAvoided");
  }
}

TEST(JobStatus, AJobWhoseNodesTakeNoPodsWaitsForThem) {
  const auto s = status(*job(2, 4), {},
                        JobVerdict{sched::Outcome::kNotNow, sched::Reason::kNodesUnavailable, {}});
  EXPECT_EQ(s.reason, "NodesUnavailable");
}

TEST(JobStatus, AJobThatWaitsSaysWhenItIsToStart) {
  const WallTime then = *parse_rfc3339("2026-11-21T08:10:00Z");
  const JobVerdict verdict{.outcome = sched::Outcome::kNotNow, .expected_start = then};
  EXPECT_EQ(status(*job(2, 4), {}, verdict).expected_start_time, then);
  auto placed = *job(2, 4, kAllocated);
  placed.job.status.expected_start_time = then;
  EXPECT_EQ(status(placed, view(Phase::kTraining, 2)).expected_start_time, std::nullopt);
}

// One word too many, and the API server would refuse all that is said.
TEST(JobStatus, WhatIsSaidFits) {
  std::vector<std::string> pods;
  for (int i = 0; i < 1000; ++i) pods.push_back("gpt-w" + std::to_string(i));
  JobObject suspends = *job(2, 4);
  suspends.job.spec.suspend = true;
  const std::string waits =
      api::find_condition(status(suspends, {}, {}, pods).conditions, "Suspended")->message;
  EXPECT_TRUE(waits.ends_with("gpt-w7 and 992 more")) << waits;
  JobFacts facts;
  const auto failing = job(2, 4, kAllocated);
  facts.job = &failing->job;
  facts.failed_reason = std::string(1000, 'R');
  facts.failed_message = std::string(100'000, 'm');
  const auto conditions = status_of(facts).conditions;
  const auto* failed = api::find_condition(conditions, "Failed");
  EXPECT_EQ(failed->reason.size(), api::kConditionReasonMost);
  EXPECT_EQ(failed->message.size(), api::kConditionMessageMost);
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
  JobObject later = *job(2, 4, kAllocated);
  later.job.status.progress = s.progress;
  const auto left = [&](std::optional<coordinator::View> v) {
    return status(later, std::move(v)).progress->estimated_remaining_seconds;
  };
  EXPECT_EQ(left(view(Phase::kRecovering, 2)), 29) << "for a moment";
  EXPECT_EQ(left(view(Phase::kParked, 0)), std::nullopt);
  EXPECT_EQ(left(view(Phase::kFinished, 2)), std::nullopt);
  later.job.status.allocation->gpus = 0;
  EXPECT_EQ(left({}), std::nullopt);
  ASSERT_EQ(s.performance->by_type.size(), 1u);
  EXPECT_EQ(s.performance->by_type[0].gpus, 2);
}

TEST(JobStatus, RecoveringAndDegradedAreSaid) {
  EXPECT_EQ(status(*job(2, 4, kAllocated), view(Phase::kRecovering, 2)).state, "Recovering");
  const auto s = status(*job(1, 4, kAllocated), view(Phase::kTraining, 1));
  EXPECT_TRUE(api::is_true(s.conditions, "Degraded"));
}

TEST(JobStatus, RescalingSaysWhichWay) {
  auto v = view(Phase::kSwitching, 2);
  for (const bool shrinks : {false, true}) {
    v.shrinks = shrinks;
    const auto s = status(*job(1, 4, kAllocated), v);
    EXPECT_TRUE(api::is_true(s.conditions, "Rescaling"));
    EXPECT_EQ(api::find_condition(s.conditions, "Rescaling")->reason, shrinks ? "Shrink" : "Grow");
  }
}

TEST(JobStatus, ANewLeaderLeavesWhatWasSaidOfWorkersThatTrainOn) {
  const auto object = job(2, 4, std::string(kAllocated) + R"(,
      "membership":{"generation":1,"leader":1,"phase":"Training","members":[],"seq":1,"step":41},
      "conditions":[{"type":"Running","status":"True","reason":"Training","message":"m",
                     "lastTransitionTime":"2026-11-21T07:59:00Z"}])");
  EXPECT_EQ(status(*object).state, "Running") << "before the coordinator has taken it";
  auto taking = view(Phase::kRecovering, 2);
  taking.taking_over = true;
  EXPECT_EQ(status(*object, taking).state, "Running");
  EXPECT_EQ(status(*object, view(Phase::kRecovering, 2)).state, "Recovering");
}

api::TrainingJobStatus suspended(const JobObject& object, std::optional<coordinator::View> v,
                                 std::vector<std::string> pods_left) {
  return status(object, std::move(v), {}, std::move(pods_left));
}

TEST(JobStatus, SuspendedIsSaidOnlyWhenNothingOfTheJobRuns) {
  constexpr const char* kSuspend = R"("suspend":true)";
  constexpr const char* kReleased =
      R"("allocation":{"epoch":2,"nextOrdinal":2,"gpus":0,"reason":"x","pods":[]},
         "progress":{"step":41,"checkpointStep":41})";
  const auto writes =
      suspended(*job(2, 4, kAllocated, kSuspend), view(Phase::kStopping, 2), {"job-w0", "job-w1"});
  EXPECT_EQ(writes.state, "Suspending");
  EXPECT_EQ(writes.reason, "Suspending");
  const auto* condition = api::find_condition(writes.conditions, "Suspended");
  EXPECT_EQ(condition->status, api::ConditionStatus::kFalse);
  EXPECT_NE(condition->message.find("checkpoint"), std::string::npos);
  const auto ends = suspended(*job(2, 4, kReleased, kSuspend), {}, {"job-w1"});
  EXPECT_EQ(ends.state, "Suspending");
  EXPECT_NE(api::find_condition(ends.conditions, "Suspended")->message.find("job-w1"),
            std::string::npos);
  const auto done = suspended(*job(2, 4, kReleased, kSuspend), {}, {});
  EXPECT_EQ(done.state, "Suspended");
  EXPECT_EQ(api::find_condition(done.conditions, "Suspended")->message,
            "suspended at step 41; set spec.suspend to false to go on");
}

TEST(JobStatus, ASuspendThatSavedLessThanAllSaysSo) {
  constexpr const char* kReleased =
      R"("allocation":{"epoch":2,"nextOrdinal":2,"gpus":0,"reason":"x","pods":[]},
         "progress":{"step":41,"checkpointStep":30})";
  const auto s = suspended(*job(2, 4, kReleased, R"("suspend":true)"), {}, {});
  EXPECT_NE(api::find_condition(s.conditions, "Suspended")->message.find("of step 30"),
            std::string::npos);
}

std::string message_of(const api::TrainingJobStatus& status, std::string_view type) {
  const auto* found = api::find_condition(status.conditions, type);
  return found == nullptr ? "" : found->message;
}

std::string with_condition(const std::string& type, const std::string& value,
                           const std::string& reason) {
  return R"("conditions":[{"type":")" + type + R"(","status":")" + value + R"(","reason":")" +
         reason + R"(","message":"of before","lastTransitionTime":"2026-11-21T07:00:00Z"}])";
}

TEST(JobStatus, OfASuspendedJobQueuedSaysSoAndNotThatItWasPlaced) {
  const std::string waited = with_condition("Queued", "True", "WaitingForGPUs");
  const auto queued = [](const api::TrainingJobStatus& s) {
    return *api::find_condition(s.conditions, "Queued");
  };
  const auto held_none = queued(status(*job(2, 4, waited, R"("suspend":true)")));
  EXPECT_EQ(held_none.status, api::ConditionStatus::kFalse);
  EXPECT_EQ(held_none.reason, "Suspended");
  const auto still_holds =
      queued(status(*job(2, 4, std::string(kAllocated) + "," + waited, R"("suspend":true)"),
                    view(Phase::kStopping, 2), {}, {"job-w0", "job-w1"}));
  EXPECT_EQ(still_holds.reason, "Placed");
}

// Else no pod of it would be tried once it can be read.
TEST(JobStatus, ASpecThatCannotBeReadIsNotObserved) {
  JobObject object = *job(2, 4);
  object.job.status.observed_generation.reset();
  object.job.unreadable = "spec.objective.deadline: must be a time";
  EXPECT_FALSE(status(object).observed_generation);
  object.job.unreadable.clear();
  EXPECT_EQ(status(object).observed_generation, 3);
  object.job.status.observed_generation = 2;  // it was read, and trains
  object.job.unreadable = "spec.objective.deadline: must be a time";
  EXPECT_EQ(status(object).observed_generation, 2);
}

TEST(JobStatus, WhatIsOverDoesNotStandAsItWas) {
  auto object = *job(1, 4, std::string(kAllocated) + "," + with_condition("Degraded", "True", "x"));
  object.job.status.allocation->gpus = 1;
  EXPECT_EQ(message_of(status(object, view(Phase::kFinished, 4)), "Degraded"), "finished");
  EXPECT_EQ(message_of(status(object, view(Phase::kTraining, 4)), "Degraded"),
            "all allocated GPUs train");
  EXPECT_EQ(message_of(status(object, view(Phase::kRecovering, 4)), "Degraded"),
            "takes no step now");
  object.job.status.conditions[0].type = "Recovering";
  EXPECT_EQ(message_of(status(object, view(Phase::kWaiting, 0)), "Recovering"),
            "no recovery is under way");
  EXPECT_EQ(message_of(status(object, view(Phase::kTraining, 1)), "Recovering"), "trains again");
}

TEST(JobStatus, ASuspendThatCameTooLateIsOverWithTheJob) {
  const auto object =
      *job(2, 4, std::string(kAllocated) + "," + with_condition("Suspended", "False", "Suspending"),
           R"("suspend":true)");
  const auto s = status(object, view(Phase::kFinished, 2), {}, {"job-w0"});
  EXPECT_EQ(s.state, "Complete");
  EXPECT_EQ(message_of(s, "Suspended"), "finished");
  EXPECT_EQ(api::find_condition(s.conditions, "Suspended")->reason, "Released");
}

TEST(JobStatus, AJobThatIsDeletedSaysSoUntilItIsGone) {
  auto object =
      *job(2, 4, std::string(kAllocated) + "," + with_condition("Suspended", "True", "Suspended"));
  object.job.meta.deletion_time = *parse_rfc3339("2026-11-21T07:59:00Z");
  const auto stops = status(object, view(Phase::kTraining, 2));
  EXPECT_EQ(stops.state, "Terminating");
  EXPECT_EQ(stops.reason, "Terminating");
  EXPECT_EQ(message_of(stops, "Suspended"), "is being deleted");
  EXPECT_NE(message_of(stops, "Queued").find("its workers stop"), std::string::npos);
  object.job.status.allocation->pods.clear();
  object.job.status.allocation->gpus = 0;
  EXPECT_NE(message_of(status(object, {}, {}, {"job-w1"}), "Queued").find("job-w1"),
            std::string::npos);
  const auto held_by_another = status(object);
  EXPECT_EQ(held_by_another.state, "Terminating");
  EXPECT_FALSE(api::is_true(held_by_another.conditions, "Queued"));
  EXPECT_NE(message_of(held_by_another, "Queued").find("metadata.finalizers"), std::string::npos);
}

TEST(JobStatus, AJobThatStartsAgainSaysWhatItDoesNow) {
  auto object = *job(2, 4, kAllocated);
  object.job.status.reason = "Training";  // of before
  const auto s = status(object, view(Phase::kWaiting, 0));
  EXPECT_EQ(s.state, "Starting");
  EXPECT_EQ(s.reason, "PodsStarting");
}

TEST(JobStatus, AJobThatHasEndedStaysAsFarAsItCame) {
  auto object = *job(2, 4,
                     with_condition("Complete", "True", "StepsReached") +
                         R"(,"progress":{"step":100,"steps":100,"percentage":100})");
  object.job.spec.training->stop.steps = 1000;
  EXPECT_EQ(status(object).display->progress, "100%");
}

TEST(JobStatus, CompleteStays) {
  const auto s = status(*job(2, 4, kAllocated), view(Phase::kFinished, 2));
  EXPECT_EQ(s.state, "Complete");
  EXPECT_TRUE(s.completion_time.has_value());
  EXPECT_FALSE(api::is_true(s.conditions, "Running"));
}

// The spec asks for 100 steps by now; it ended at 41, as was asked for when its end was decided.
TEST(JobStatus, AStopThatIsRaisedTooLateIsNoTargetOfTheJob) {
  auto done = view(Phase::kStopping, 2);
  EXPECT_EQ(status(*job(2, 4, kAllocated), done).progress->steps, 100);
  done.end = Phase::kFinished;
  const auto ending = status(*job(2, 4, kAllocated), done);
  EXPECT_EQ(ending.progress->steps, 41);
  EXPECT_EQ(ending.progress->percentage, 100);
  const auto later = status(*job(
      2, 4,
      R"("progress":{"step":41,"steps":41},"conditions":[{"type":"Complete","status":"True","reason":"StepsReached","message":""}])"));
  EXPECT_EQ(later.progress->steps, 41);
}

TEST(JobStatus, ARescaleIsCountedOnceEvenByANewLeader) {
  auto v = view(Phase::kTraining, 2);
  v.changes.push_back({.generation = 5,
                       .kind = "join",
                       .reason = "epoch 2",
                       .from = 1,
                       .to = 2,
                       .stall_seconds = 0.25});
  v.rescales = 1;
  const auto first = status(*job(2, 4, kAllocated), v);
  ASSERT_TRUE(first.rescales.has_value());
  EXPECT_EQ(first.rescales->count, 1);
  JobObject again = *job(2, 4, kAllocated);
  again.job.status.rescales = first.rescales;
  EXPECT_EQ(status(again, v).rescales->count, 1);
  v.changes.clear();
  v.rescales = 2;  // one more was decided by a leader that could not tell
  const auto later = status(again, v);
  EXPECT_EQ(later.rescales->count, 2);
  EXPECT_EQ(later.rescales->last->to, 2);
}

TEST(JobStatus, OfAProgramIsShownWhatItTells) {
  JobObject object = *job(2, 4, kAllocated);
  object.job.spec.runtime = api::Runtime::kTorchrun;
  object.job.spec.training.reset();
  auto v = view(Phase::kTraining, 2);
  v.step = v.tokens = 0;
  v.loss = 0;
  const auto silent = status(object, v);
  EXPECT_FALSE(silent.progress.has_value());
  EXPECT_EQ(silent.display->progress, "");
  v.step = 40;
  v.tokens = 40'000;
  v.loss = 2.5;
  const auto told = status(object, v);
  EXPECT_EQ(told.display->progress, "40 steps");
  v.step = 1;
  EXPECT_EQ(status(object, v).display->progress, "1 step");
  EXPECT_EQ(told.display->loss, "2.500");
  EXPECT_EQ(told.performance->tokens_per_second, 2000) << "1000 a step of half a second";
  EXPECT_EQ(told.performance->by_type.size(), 1u);
  EXPECT_FALSE(told.progress->estimated_remaining_seconds.has_value());
}

TEST(JobStatus, OfAScriptOurStepsAreShownAndItsTokens) {
  JobObject object = *job(2, 4, kAllocated);
  object.job.spec.runtime = api::Runtime::kPytorch;
  object.job.spec.training->model.reset();
  object.job.spec.training->data.reset();
  auto v = view(Phase::kTraining, 2);
  v.step = v.tokens = 0;
  const auto begun = status(object, v);
  EXPECT_FALSE(begun.decay_steps.has_value()) << "its schedule is its own";
  EXPECT_FALSE(begun.performance.has_value());
  v.step = 40;
  v.tokens = 40'000;
  for (auto& member : v.members) member.gpu_type = "NVIDIA-H100-80GB-HBM3";
  const auto told = status(object, v);
  EXPECT_EQ(told.progress->percentage, 40);
  EXPECT_EQ(told.progress->estimated_remaining_seconds, 30);
  EXPECT_EQ(told.performance->tokens_per_second, 2000) << "1000 a step of half a second";
  EXPECT_FALSE(told.performance->mfu.has_value()) << "nobody here knows its model";
}

TEST(JobStatus, HowLongAStartAndAJoinTookIsWrittenOnce) {
  JobFacts facts;
  JobObject object = *job(2, 4, kAllocated);
  facts.job = &object.job;
  facts.now = *parse_rfc3339("2026-11-21T08:00:20Z");
  const MonoTime formed{1h};
  facts.newest_pod_made = formed - 10s;
  facts.view = view(Phase::kTraining, 2);
  facts.view->generation = 2;
  facts.view->changes = {
      {.generation = 2, .kind = "start", .from = 0, .to = 2, .formed_at = formed}};
  facts.now += 8h;  // the wall clock jumps, or the status is written late
  object.job.status = status_of(facts);
  EXPECT_EQ(object.job.status.performance->start_seconds, 10);
  facts.now += 60s;
  EXPECT_EQ(status_of(facts).performance, object.job.status.performance) << "it is over";
  facts.view->generation = 3;
  facts.view->changes.push_back(
      {.generation = 3, .kind = "recover", .from = 2, .to = 1, .formed_at = formed + 1min});
  EXPECT_EQ(status_of(facts).performance, object.job.status.performance) << "nobody was new";
  facts.view->generation = 4;
  facts.view->changes.push_back(
      {.generation = 4, .kind = "join", .from = 1, .to = 2, .formed_at = formed + 2min});
  facts.newest_pod_made.reset();
  EXPECT_FALSE(status_of(facts).performance->join_seconds) << "an earlier leader made its pod";
  facts.newest_pod_made = formed + 2min - 2500ms;
  const auto joined = status_of(facts);
  EXPECT_EQ(joined.performance->start_seconds, 10);
  EXPECT_EQ(joined.performance->join_seconds, 2.5);
}

TEST(JobStatus, TheStallOfThePlannedChangeIsKeptOverALoss) {
  JobFacts facts;
  JobObject object = *job(2, 4, kAllocated);
  facts.job = &object.job;
  facts.view = view(Phase::kTraining, 2);
  facts.view->changes = {
      {.generation = 2, .kind = "recover", .from = 3, .to = 2, .stall_seconds = 30}};
  facts.view->rescales = 3;
  EXPECT_FALSE(status_of(facts).performance.value_or(api::Performance{}).stall_seconds);
  facts.view->changes.push_back(
      {.generation = 3, .kind = "join", .from = 2, .to = 3, .stall_seconds = 0.25});
  facts.view->changes.push_back(
      {.generation = 4, .kind = "recover", .from = 3, .to = 2, .stall_seconds = 30});
  object.job.status = status_of(facts);
  EXPECT_EQ(object.job.status.performance->stall_seconds, 0.25);
  EXPECT_EQ(object.job.status.rescales->last->stall_seconds, 30);
  facts.view->changes.clear();
  EXPECT_EQ(status_of(facts).performance->stall_seconds, 0.25) << "a new leader knows it, too";
}

TEST(JobStatus, GoodputIsTheUsefulPartOfWhatWasHeld) {
  JobFacts facts;
  const auto object = job(2, 4, kAllocated);
  facts.job = &object->job;
  facts.view = view(Phase::kTraining, 2);
  facts.view->validation_step = 40;
  facts.view->validation_loss = 3.5;
  facts.gpu_seconds = coordinator::GpuSeconds{.useful = 93, .queue = 4, .failure = 3};
  const auto s = status_of(facts);
  EXPECT_EQ(s.display->goodput, "0.93");
  EXPECT_EQ(*s.performance->goodput, 0.93);
  EXPECT_EQ(*s.useful_gpu_seconds, 93);
  EXPECT_EQ(s.lost_gpu_seconds->queue, 4);
  EXPECT_EQ(*s.progress->validation_loss, 3.5);
  EXPECT_FALSE(s.performance->mfu.has_value());  // nobody knows the peak of an "A"
}

// What is new since the last status goes to the types of the allocation, pod by pod.
TEST(JobStatus, GpuTimeIsBookedByType) {
  JobFacts facts;
  const auto before = job(2, 4, kAllocated);
  api::TrainingJob seen = before->job;
  seen.status.useful_gpu_seconds = 60;
  seen.status.gpu_seconds_by_type = {{"B", 40}, {"A", 20}};
  facts.job = &seen;
  facts.view = view(Phase::kTraining, 2);
  facts.gpu_seconds = coordinator::GpuSeconds{.useful = 93, .queue = 7};
  const auto booked = status_of(facts).gpu_seconds_by_type;
  EXPECT_EQ(booked, (std::vector<api::TypeGpuSeconds>{{"B", 40}, {"A", 60}}));
  seen.status.allocation->pods.clear();
  EXPECT_EQ(status_of(facts).gpu_seconds_by_type, seen.status.gpu_seconds_by_type);
}

// What rounding leaves out of a status is not booked anew with each.
TEST(JobStatus, GpuTimeByTypeIsAllThatWasHeld) {
  JobFacts facts;
  const auto before = job(2, 4, kAllocated);
  api::TrainingJob seen = before->job;
  facts.job = &seen;
  facts.view = view(Phase::kTraining, 2);
  for (int second = 1; second <= 100; ++second) {
    facts.gpu_seconds =
        coordinator::GpuSeconds{.useful = 2.0 * second, .queue = 4.04, .rescale = 3.03};
    seen.status = status_of(facts);
  }
  ASSERT_EQ(seen.status.gpu_seconds_by_type.size(), 1u);
  EXPECT_NEAR(seen.status.gpu_seconds_by_type[0].seconds, 207.07, 0.2);
}

TEST(JobStatus, MfuWhereThePeakIsKnown) {
  auto v = view(Phase::kTraining, 2);
  for (auto& member : v.members) member.gpu_type = "NVIDIA-H100-80GB-HBM3";
  const auto s = status(*job(2, 4, kAllocated), v);
  // 6 · (12·1·8² + 257·8) + 12·1·8·16 = 18480 FLOP a token, 256 tokens/s, two of 67 TFLOP/s.
  ASSERT_TRUE(s.performance->mfu.has_value());
  EXPECT_NEAR(*s.performance->mfu, 18480.0 * 256 / (2 * 67e12), 1e-18);
}

TEST(JobStatus, NoMfuOfGpusThatAreNotUsed) {
  auto v = view(Phase::kTraining, 2);
  for (auto& member : v.members) member.gpu_type = "NVIDIA-H100-80GB-HBM3";
  const auto on_cpu =
      job(2, 4, std::string(kAllocated) + R"(,"membership":{"generation":1,"leader":1,
      "phase":"Training","members":[],"seq":0,"step":0,"fingerprint":"2-cpu/avx2/v1-0123"})");
  EXPECT_FALSE(status(*on_cpu, v).performance->mfu.has_value());
}

TEST(JobStatus, BothEndsHaveATime) {
  EXPECT_TRUE(status(*job(2, 4, kAllocated), view(Phase::kFinished, 2)).completion_time);
  JobFacts facts;
  const auto object = job(2, 4, kAllocated);
  facts.job = &object->job;
  facts.failed_reason = "NonFinite";
  EXPECT_TRUE(status_of(facts).completion_time);
}

// The deadline is of the time since the last resume.
TEST(JobStatus, TheStartOfASuspendedJobIsForgotten) {
  const std::string started = std::string(kAllocated) + R"(,"startTime":"2026-11-21T07:30:00Z")";
  EXPECT_TRUE(status(*job(2, 4, started), view(Phase::kTraining, 2)).start_time);
  EXPECT_FALSE(
      status(*job(2, 4, started, R"("suspend":true)"), view(Phase::kStopping, 2)).start_time);
}

TEST(JobStatus, AParkedJobSaysSinceWhen) {
  const auto parked = status(*job(2, 4, kAllocated), view(Phase::kParked, 1));
  ASSERT_TRUE(parked.parked_since);
  const std::string before = std::string(kAllocated) + R"(,"parkedSince":"2026-11-21T07:30:00Z")";
  EXPECT_LT(*status(*job(2, 4, before), view(Phase::kParked, 1)).parked_since,
            *parked.parked_since);
  EXPECT_FALSE(status(*job(2, 4, before), view(Phase::kTraining, 2)).parked_since);
}

TEST(JobStatus, RestartsAreWhatIsChargedAndWhatIsNot) {
  JobFacts facts;
  const auto object =
      job(2, 4, R"("allocation":{"epoch":1,"nextOrdinal":2,"gpus":0,"pods":[],"lostPods":3})");
  facts.job = &object->job;
  facts.own_failures = 2;
  const auto s = status_of(facts);
  EXPECT_EQ(s.restarts->count, 2);
  EXPECT_EQ(s.restarts->infrastructure, 3);
}

TEST(JobStatus, CheckpointsThatAreNotSharedAreSaid) {
  auto v = view(Phase::kTraining, 2);
  EXPECT_EQ(
      api::find_condition(status(*job(2, 4, kAllocated), v).conditions, "CheckpointNotShared"),
      nullptr);
  v.checkpoint_shared = false;
  v.checkpoint_unshared_by = "pod job-w1 on node n2 cannot read the checkpoint of step 40";
  const auto s = status(*job(2, 4, kAllocated), v);
  EXPECT_TRUE(api::is_true(s.conditions, "CheckpointNotShared"));
  EXPECT_NE(api::find_condition(s.conditions, "CheckpointNotShared")->message.find("n2"),
            std::string::npos);
}

TEST(JobStatus, DamagedCheckpointsAndThoseThatCannotBeWrittenAreSaid) {
  auto v = view(Phase::kTraining, 2);
  EXPECT_EQ(api::find_condition(status(*job(2, 4, kAllocated), v).conditions, "CheckpointUnusable"),
            nullptr);
  v.checkpoint_damaged = "the checkpoint of step 40 cannot be used";
  v.checkpoint_failing = "no space left";
  auto s = status(*job(2, 4, kAllocated), v);
  EXPECT_TRUE(api::is_true(s.conditions, "CheckpointUnusable"));
  EXPECT_TRUE(api::is_true(s.conditions, "Degraded"));
  EXPECT_EQ(api::find_condition(s.conditions, "Degraded")->reason, "CheckpointFailed");
  EXPECT_NE(api::find_condition(s.conditions, "Degraded")->message.find("no space left"),
            std::string::npos);
  v.checkpoint_damaged = "";
  v.checkpoint_failing = "";
  s = status(*job(2, 4, kAllocated), v);
  EXPECT_FALSE(api::is_true(s.conditions, "CheckpointUnusable"));
  EXPECT_FALSE(api::is_true(s.conditions, "Degraded"));
  v = view(Phase::kWaiting, 0);  // it is to begin from one
  v.checkpoint_unread = "pod a on node n1: listing /ckpt: Stale file handle";
  s = status(*job(2, 4, kAllocated), v);
  EXPECT_TRUE(api::is_true(s.conditions, "Degraded"));
  EXPECT_NE(api::find_condition(s.conditions, "Degraded")->message.find(v.checkpoint_unread),
            std::string::npos);
}

TEST(JobStatus, StatesThatDifferedAreSaidForAWhileUnderWhicheverLeader) {
  auto v = view(Phase::kTraining, 2);
  const auto object = job(2, 4, kAllocated);
  JobFacts facts;
  facts.job = &object->job;
  facts.now = WallTime{std::chrono::hours(1)};
  facts.view = v;
  EXPECT_EQ(api::find_condition(status_of(facts).conditions, "Diverged"), nullptr);
  facts.view->diverged = "round 20 of step 21: pods a held another state than pods b, c";
  auto changed = *object;
  changed.job.status = status_of(facts);
  EXPECT_TRUE(api::is_true(changed.job.status.conditions, "Diverged"));
  EXPECT_EQ(api::find_condition(changed.job.status.conditions, "Diverged")->message,
            facts.view->diverged);
  facts.job = &changed.job;
  facts.view->diverged.clear();  // another leader's
  facts.now += coordinator::kDivergedShown - 1s;
  EXPECT_TRUE(api::is_true(status_of(facts).conditions, "Diverged"));
  facts.now += 1s;
  facts.view->phase = Phase::kRecovering;
  EXPECT_TRUE(api::is_true(status_of(facts).conditions, "Diverged"));
  facts.view->phase = Phase::kTraining;
  EXPECT_FALSE(api::is_true(status_of(facts).conditions, "Diverged"));
}

TEST(JobStatus, AChangeOfSettingsIsNoRescale) {
  auto v = view(Phase::kTraining, 2);
  v.changes = {{.generation = 5, .kind = "join", .reason = "x", .from = 1, .to = 2},
               {.generation = 6, .kind = "leave", .reason = "y", .from = 2, .to = 1},
               {.generation = 7, .kind = "settings", .reason = "z", .from = 1, .to = 1}};
  v.rescales = 2;
  const auto s = status(*job(1, 4, kAllocated), v);
  EXPECT_EQ(s.rescales->count, 2);
  EXPECT_EQ(s.rescales->last->to, 1);
}

TEST(JobStatus, PodsThatCannotStartAreNamed) {
  const auto object = job(1, 4, kAllocated);
  JobFacts facts;
  facts.job = &object->job;
  facts.start_problems = "pod job-w1 on node n2 cannot start: ImagePullBackOff";
  facts.view = view(Phase::kWaiting, 0);
  facts.view->reason = "waiting for 1 ready worker";
  EXPECT_EQ(api::find_condition(status_of(facts).conditions, "Running")->message,
            facts.start_problems);
  facts.view = view(Phase::kTraining, 1);
  EXPECT_EQ(api::find_condition(status_of(facts).conditions, "Degraded")->message,
            "1 of 2 allocated GPUs trains; " + facts.start_problems);
}

TEST(JobStatus, TheEndOfTheDecayIsFixedAtFirstSight) {
  EXPECT_EQ(status(*job(1, 4)).decay_steps, 100);
  EXPECT_EQ(status(*job(1, 4, R"("decaySteps":60)")).decay_steps, 60);
}

TEST(Allocation, OrdinalsAreNeverReused) {
  const auto object = job(2, 4, kAllocated);
  sched::Action action;
  action.remove = {1};
  action.add = {{"n3", "A", 1}};
  action.cause = sched::MakesRoom{"b"};
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
