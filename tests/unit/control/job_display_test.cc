// The columns of `kubectl get`: they say what is so now.
#include "tests/unit/control/status_facts.h"

namespace rubato::control {
namespace {

using coordinator::Phase;

JobObject trained() {
  JobObject object = *job(2, 4, kAllocated);
  object.job.status.display = status(object, view(Phase::kTraining, 2)).display;
  EXPECT_EQ(object.job.status.display->type, "A");
  EXPECT_EQ(object.job.status.display->tokens_per_second, "256");
  return object;
}

TEST(JobDisplay, AJobThatTakesNoStepShowsNoSpeed) {
  const JobObject object = trained();
  for (const Phase phase : {Phase::kWaiting, Phase::kParked, Phase::kFinished, Phase::kFailed}) {
    const auto s = status(object, view(phase, 2));
    EXPECT_EQ(s.display->tokens_per_second, "") << static_cast<int>(phase);
    EXPECT_EQ(s.display->type, "A") << static_cast<int>(phase);
    EXPECT_NE(s.display->progress, "") << static_cast<int>(phase);
  }
}

TEST(JobDisplay, AJobThatHoldsNothingShowsNoType) {
  JobObject object = trained();
  object.job.status.allocation->pods.clear();
  object.job.status.allocation->gpus = 0;
  const auto s = status(object);
  EXPECT_EQ(s.display->type, "");
  EXPECT_EQ(s.display->tokens_per_second, "");
}

TEST(JobDisplay, ANewLeaderLeavesTheSpeedOfWorkersThatTrainOn) {
  JobObject object = trained();
  auto taking = view(Phase::kRecovering, 2);
  taking.taking_over = true;
  EXPECT_EQ(status(object, taking).display->tokens_per_second, "256");
}

TEST(JobDisplay, ASpecThatCouldNotBeTriedIsNotObserved) {
  JobObject object = *job(2, 4);
  object.job.status.observed_generation.reset();
  JobFacts facts;
  facts.job = &object.job;
  facts.is_tried = false;
  EXPECT_FALSE(status_of(facts).observed_generation);
  facts.is_tried = true;
  facts.priority = api::JobPriority{.class_name = "high", .value = 7};
  EXPECT_TRUE(status_of(facts).observed_generation);
  EXPECT_EQ(status_of(facts).priority, facts.priority);
}

}  // namespace
}  // namespace rubato::control
