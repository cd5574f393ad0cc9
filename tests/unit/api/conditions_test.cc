#include "operator/api/conditions.h"

#include <gtest/gtest.h>

namespace rubato::api {
namespace {

const WallTime kNoon{std::chrono::seconds(1'800'000'000)};

Condition running(ConditionStatus status, std::string_view why, std::string message = "") {
  Condition wanted;
  wanted.type = condition::kRunning;
  wanted.status = status;
  wanted.reason = why;
  wanted.message = std::move(message);
  wanted.observed_generation = 1;
  return wanted;
}

TEST(SetCondition, TimeMovesOnlyWhenTheStatusFlips) {
  std::vector<Condition> held;
  EXPECT_TRUE(set_condition(held, running(ConditionStatus::kFalse, "PodsStarting"), kNoon + 300ms));
  ASSERT_EQ(held.size(), 1u);
  EXPECT_EQ(held[0].last_transition_time, kNoon);  // whole seconds, as the API keeps it

  EXPECT_FALSE(set_condition(held, running(ConditionStatus::kFalse, "PodsStarting"), kNoon + 5s));
  EXPECT_EQ(held[0].last_transition_time, kNoon);

  EXPECT_TRUE(set_condition(held, running(ConditionStatus::kFalse, "Parked", "why"), kNoon + 6s));
  EXPECT_EQ(held[0].last_transition_time, kNoon);
  EXPECT_EQ(held[0].message, "why");

  EXPECT_TRUE(set_condition(held, running(ConditionStatus::kTrue, "Training"), kNoon + 7s));
  EXPECT_EQ(held[0].last_transition_time, kNoon + 7s);
  EXPECT_EQ(held.size(), 1u);
}

TEST(SetCondition, GenerationNeverGoesBack) {
  std::vector<Condition> held;
  Condition newer = running(ConditionStatus::kTrue, "Training");
  newer.observed_generation = 4;
  set_condition(held, newer, kNoon);
  EXPECT_FALSE(set_condition(held, running(ConditionStatus::kTrue, "Training"), kNoon));
  EXPECT_EQ(held[0].observed_generation, 4);
}

std::string state_with(std::initializer_list<std::string_view> types) {
  std::vector<Condition> held;
  for (const std::string_view type : types) {
    Condition wanted = running(ConditionStatus::kTrue, "Because");
    wanted.type = type;
    set_condition(held, wanted, kNoon);
  }
  return std::string(state_of(held));
}

TEST(StateOf, OneWordInOrderOfWeight) {
  using namespace condition;
  EXPECT_EQ(state_with({}), "Pending");
  EXPECT_EQ(state_with({kQueued}), "Queued");
  EXPECT_EQ(state_with({kAllocated}), "Starting");
  EXPECT_EQ(state_with({kAllocated, kRunning}), "Running");
  EXPECT_EQ(state_with({kAllocated, kRunning, kDegraded}), "Running");
  EXPECT_EQ(state_with({kAllocated, kRunning, kRescaling}), "Rescaling");
  EXPECT_EQ(state_with({kAllocated, kRescaling, kRecovering}), "Recovering");
  EXPECT_EQ(state_with({kQueued, kSuspended}), "Suspended");
  EXPECT_EQ(state_with({kRunning, kComplete}), "Complete");
  EXPECT_EQ(state_with({kSuspended, kFailed}), "Failed");
}

TEST(StateOf, SuspendingUntilNothingRuns) {
  std::vector<Condition> held;
  set_condition(held, running(ConditionStatus::kTrue, "Training"), kNoon);
  Condition suspended = running(ConditionStatus::kFalse, std::string(reason::kSuspending));
  suspended.type = condition::kSuspended;
  set_condition(held, suspended, kNoon);
  EXPECT_EQ(state_of(held), "Suspending");
  suspended.reason = reason::kResumed;
  set_condition(held, suspended, kNoon);
  EXPECT_EQ(state_of(held), "Running");
}

TEST(StateOf, TerminatingFromItsDeletionToItsEnd) {
  std::vector<Condition> held;
  set_condition(held, running(ConditionStatus::kTrue, reason::kTraining), kNoon);
  Condition queued = running(ConditionStatus::kFalse, reason::kTerminating);
  queued.type = condition::kQueued;
  set_condition(held, queued, kNoon);
  EXPECT_EQ(state_of(held), "Terminating");
  Condition complete = running(ConditionStatus::kTrue, reason::kStepsReached);
  complete.type = condition::kComplete;
  set_condition(held, complete, kNoon);
  EXPECT_EQ(state_of(held), "Complete");
}

TEST(StateOf, ParkedWhenNotRunningForThatReason) {
  std::vector<Condition> held;
  Condition recovering = running(ConditionStatus::kTrue, "NodeLost");
  recovering.type = condition::kRecovering;
  set_condition(held, recovering, kNoon);
  set_condition(held, running(ConditionStatus::kFalse, reason::kParked), kNoon);
  EXPECT_EQ(state_of(held), "Parked");
  EXPECT_FALSE(is_finished(held));
  set_condition(held, running(ConditionStatus::kTrue, reason::kTraining), kNoon);
  EXPECT_EQ(state_of(held), "Recovering");
}

}  // namespace
}  // namespace rubato::api
