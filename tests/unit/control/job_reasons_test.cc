// Each reason of a condition, and what leads to it. tests/runbook holds the list to be whole.
#include "operator/control/queue_status.h"
#include "tests/unit/control/status_facts.h"

namespace rubato::control {
namespace {

using coordinator::Phase;

using Said = std::pair<std::string, std::string>;  // status and reason of a condition

Said said(const api::TrainingJobStatus& status, std::string_view type) {
  const api::Condition* found = api::find_condition(status.conditions, type);
  if (found == nullptr) return {"", ""};
  return {std::string(api::name_of(found->status)), found->reason};
}

std::string had(const std::string& type, const std::string& reason,
                const std::string& status = "True") {
  return std::string(kAllocated) + R"(,"conditions":[{"type":")" + type + R"(","status":")" +
         status + R"(","reason":")" + reason +
         R"(","message":"","lastTransitionTime":"2026-11-21T07:00:00Z"}])";
}

Said queued_for(sched::Reason reason, const std::string& word = "") {
  return said(status(*job(2, 4), {}, JobVerdict{sched::Outcome::kNotNow, reason, {word, "why"}}),
              "Queued");
}

TEST(Reasons, OfWaiting) {
  EXPECT_EQ(queued_for(sched::Reason::kQueueUnknown), Said("True", "QueueNotFound"));
  EXPECT_EQ(queued_for(sched::Reason::kQueueForbidden), Said("True", "QueueForbidden"));
  EXPECT_EQ(queued_for(sched::Reason::kQueueLimit), Said("True", "QueueLimit"));
  EXPECT_EQ(queued_for(sched::Reason::kLoadLimit), Said("True", "LoadLimit"));
  EXPECT_EQ(queued_for(sched::Reason::kOthersNotPreemptible), Said("True", "OthersNotPreemptible"));
  EXPECT_EQ(queued_for(sched::Reason::kGuaranteeFull), Said("True", "GuaranteeFull"));
  EXPECT_EQ(queued_for(sched::Reason::kWaitingForRelease), Said("True", "WaitingForRelease"));
  EXPECT_EQ(queued_for(sched::Reason::kInsufficientGpus), Said("True", "WaitingForGPUs"));
  for (const char* named : {"NeverFits", "ClaimNotFound", "ClaimsDenied", "ClaimLost",
                            "ClaimNotBound", "ClaimInUse", "StorageClassNotFound"})
    EXPECT_EQ(queued_for(sched::Reason::kRefused, named), Said("True", named));
  const auto placed = status(*job(2, 4), {}, JobVerdict{});  // its allocation is not shown yet
  EXPECT_EQ(said(placed, "Queued"), Said("True", "WaitingForGPUs"));
  EXPECT_EQ(api::find_condition(placed.conditions, "Queued")->message,
            "its GPUs are being assigned");
  JobFacts facts;
  JobObject object = *job(2, 4);
  object.job.status.observed_generation.reset();
  facts.job = &object.job;
  facts.forbidden = "exceeded quota";
  EXPECT_EQ(said(status_of(facts), "Queued"), Said("True", "PodForbidden"));
  EXPECT_FALSE(status_of(facts).observed_generation) << "it is not scheduled yet";
  object.job.status.conditions = status_of(facts).conditions;
  facts.forbidden.clear();
  facts.is_tried = false;  // the API server was away
  EXPECT_EQ(status_of(facts).conditions, object.job.status.conditions) << "nothing newer is known";
  facts.is_tried = true;
  EXPECT_EQ(said(status_of(facts), "Queued"), Said("True", "WaitingForGPUs"));
  facts.forbidden.clear();
  facts.queued_reason = "InvalidSpec";
  EXPECT_EQ(said(status_of(facts), "Queued"), Said("True", "InvalidSpec"));
}

TEST(Reasons, OfChangesThatAreOver) {
  EXPECT_EQ(said(status(*job(2, 4, had("Running", "Training"))), "Running"),
            Said("False", "PodsStarting"));
  EXPECT_EQ(
      said(
          status(*job(
              2, 4,
              R"("conditions":[{"type":"Running","status":"True","reason":"Training","message":""}])")),
          "Running"),
      Said("False", "Stopped"));
  const auto trains = view(Phase::kTraining, 2);
  EXPECT_EQ(said(status(*job(2, 4, had("Rescaling", "Grow")), trains), "Rescaling"),
            Said("False", "Settled"));
  EXPECT_EQ(said(status(*job(2, 4, had("Recovering", "NodeLost")), trains), "Recovering"),
            Said("False", "Recovered"));
  EXPECT_EQ(said(status(*job(2, 4, kAllocated), view(Phase::kTraining, 1)), "Degraded"),
            Said("True", "FewerThanAllocated"));
}

TEST(Reasons, OfCheckpoints) {
  auto v = view(Phase::kTraining, 2);
  v.checkpoint_damaged = "step 20 is damaged";
  v.checkpoint_shared = false;
  auto s = status(*job(2, 4, kAllocated), v);
  EXPECT_EQ(said(s, "CheckpointUnusable"), Said("True", "CheckpointDamaged"));
  EXPECT_EQ(said(s, "CheckpointNotShared"), Said("True", "NodeLocalVolume"));
  v.checkpoint_damaged = "";
  v.checkpoint_shared = true;
  EXPECT_EQ(said(status(*job(2, 4, had("CheckpointUnusable", "CheckpointDamaged")), v),
                 "CheckpointUnusable"),
            Said("False", "CheckpointWritten"));
  EXPECT_EQ(said(status(*job(2, 4, had("CheckpointNotShared", "NodeLocalVolume")), v),
                 "CheckpointNotShared"),
            Said("False", "SharedVolume"));
}

TEST(Reasons, OfAScriptThatHasMadeNoJob) {
  auto v = view(Phase::kWaiting, 0);
  v.idle_process = "worker 0 of pod job-w0 on node n1 has run for 60 s";
  auto object = *job(2, 4, kAllocated);
  EXPECT_EQ(said(status(object, v), "Degraded"), Said("", "")) << "runtime builtin has no script";
  object.job.spec.runtime = api::Runtime::kPytorch;
  object.job.status = status(object, v);
  EXPECT_EQ(said(object.job.status, "Degraded"), Said("True", "NoJobYet"));
  EXPECT_EQ(
      api::find_condition(object.job.status.conditions, "Degraded")->message,
      "the script has made no rubato.Job yet, or does not iterate over it: " + v.idle_process);
  v.idle_process.clear();
  EXPECT_EQ(said(status(object, v), "Degraded"), Said("False", "Recovered"));
}

// 59 steps of half a second are left at 08:00.
TEST(Reasons, OfDeadlines) {
  const auto due = [](const std::string& time) {
    return *job(2, 4, kAllocated, R"("objective":{"deadline":"2026-11-21T)" + time + R"(Z"})");
  };
  const auto trains = view(Phase::kTraining, 2);
  EXPECT_EQ(said(status(due("07:59:59"), trains), "DeadlineAtRisk"),
            Said("True", "DeadlinePassed"));
  EXPECT_EQ(said(status(due("08:00:28"), trains), "DeadlineAtRisk"), Said("True", "ExpectedLate"));
  EXPECT_EQ(api::find_condition(status(due("08:00:30"), trains).conditions, "DeadlineAtRisk"),
            nullptr);
  const JobVerdict blind{.ignores_deadline = "fifo"};
  EXPECT_EQ(said(status(due("08:00:30"), trains, blind), "DeadlineAtRisk"),
            Said("True", "DeadlineNotConsidered"));
  // Near the border, and while its workers change, it stays late.
  const auto late_and_due = [&](const std::string& time) {
    JobObject late = due(time);
    late.job.status.conditions = {{.type = "DeadlineAtRisk",
                                   .status = api::ConditionStatus::kTrue,
                                   .reason = "ExpectedLate",
                                   .observed_generation = late.job.meta.generation}};
    return late;
  };
  JobObject late = late_and_due("08:00:40");
  EXPECT_EQ(said(status(late, trains), "DeadlineAtRisk"), Said("False", "ExpectedInTime"));
  EXPECT_EQ(said(status(late, view(Phase::kRecovering, 2)), "DeadlineAtRisk"),
            Said("True", "ExpectedLate"));
  EXPECT_EQ(said(status(late_and_due("08:00:29"), trains), "DeadlineAtRisk"),
            Said("True", "ExpectedLate"));
  EXPECT_EQ(said(status(late, view(Phase::kFinished, 2)), "DeadlineAtRisk"),
            Said("False", "ExpectedInTime"));
}

TEST(Reasons, OfRecovering) {
  const auto reason_of = [](const std::string& cause, Phase phase = Phase::kRecovering) {
    auto v = view(phase, 2);
    v.recovers_from = cause;
    return said(status(*job(2, 4, kAllocated), v), "Recovering").second;
  };
  for (const char* same :
       {"PodDeleted", "LinkFailed", "StepFailed", "Resumed", "Suspending", "DataDamaged",
        "DataUnreadable", "DatasetChanged", "ProgramFailed", "CheckpointFailed"})
    EXPECT_EQ(reason_of(same), same);
  EXPECT_EQ(reason_of("Stuck"), "StepStalled");
  EXPECT_EQ(reason_of("Silent"), "NodeLost");
  EXPECT_EQ(reason_of("Diverged"), "StatesDiffer");
  EXPECT_EQ(reason_of("OutOfMemory"), "WorkerCrashed");
  EXPECT_EQ(reason_of("CannotLevel"), "StepFailed");
  EXPECT_EQ(reason_of("", Phase::kParked), "Parked") << "under a new leader";
}

TEST(Reasons, OfStatesThatDiffered) {
  auto v = view(Phase::kTraining, 2);
  v.diverged = "two held different states";
  EXPECT_EQ(said(status(*job(2, 4, kAllocated), v), "Diverged"), Said("True", "StatesDiffer"));
  v.diverged.clear();
  EXPECT_EQ(said(status(*job(2, 4, had("Diverged", "StatesDiffer")), v), "Diverged"),
            Said("False", "StatesAgree"));
}

}  // namespace
}  // namespace rubato::control
