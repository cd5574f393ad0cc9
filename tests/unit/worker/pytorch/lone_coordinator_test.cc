// What a worker hears that trains alone, when something fails.
#include "worker/pytorch/lone_coordinator.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace rubato::worker {
namespace {

class LoneCoordinatorTest : public ::testing::Test {
 protected:
  void fail(const std::string& reason, wire::FailureScope scope) {
    wire::WorkerEvent event;
    event.mutable_standing()->set_phase(wire::WORKER_TRAINING);
    event.mutable_failure()->set_reason(reason);
    event.mutable_failure()->set_message("the disk is full");
    event.mutable_failure()->set_scope(scope);
    coordinator_.hear(event);
  }
  void be(wire::WorkerPhase phase) {
    wire::WorkerEvent event;
    event.mutable_standing()->set_phase(phase);
    coordinator_.hear(event);
  }

  std::vector<wire::WorkerCommand> commands_;
  LoneCoordinator coordinator_{"{}", 4, [this](const std::string& text) {
                                 ASSERT_TRUE(commands_.emplace_back().ParseFromString(text));
                               }};
};

TEST_F(LoneCoordinatorTest, ACheckpointThatIsTriedAgainEndsNothing) {
  be(wire::WORKER_READY);
  ASSERT_EQ(commands_.size(), 1u);
  EXPECT_TRUE(commands_[0].has_form());
  for (int i = 0; i < 2; ++i) fail("CheckpointFailed", wire::FAILURE_SCOPE_ATTEMPT);
  EXPECT_EQ(commands_.size(), 1u);
  EXPECT_EQ(coordinator_.failure(), "");
  be(wire::WORKER_FINISHED);
  ASSERT_EQ(commands_.size(), 2u);
  EXPECT_EQ(commands_[1].retire().reason(), "done");
}

TEST_F(LoneCoordinatorTest, OneThatIsGivenUpEndsTheRun) {
  fail("CheckpointFailed", wire::FAILURE_SCOPE_ATTEMPT);
  fail("CheckpointFailed", wire::FAILURE_SCOPE_JOB);
  ASSERT_EQ(commands_.size(), 1u);
  EXPECT_EQ(commands_[0].retire().reason(), "CheckpointFailed: the disk is full");
  EXPECT_EQ(coordinator_.failure(), "CheckpointFailed: the disk is full");
}

TEST_F(LoneCoordinatorTest, AnAttemptAtAnythingElseIsTheLast) {
  fail("ProgramFailed", wire::FAILURE_SCOPE_ATTEMPT);
  ASSERT_EQ(commands_.size(), 1u);
  EXPECT_TRUE(commands_[0].has_retire());
  EXPECT_EQ(coordinator_.failure(), "ProgramFailed: the disk is full");
}

}  // namespace
}  // namespace rubato::worker
