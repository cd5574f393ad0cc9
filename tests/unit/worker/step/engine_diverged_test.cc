// A bit flips in a worker's memory.
#include "tests/unit/worker/step/engine_fixture.h"

namespace rubato::worker {
namespace {

class EngineDivergedTest : public EngineTest {
 protected:
  // Where a bit of what a vote soon speaks of flips in step `step`, or one of the ballast's, which
  // no vote looks at before round 64.
  static FakeTroubles flipped(std::uint64_t step, FakeTroubles troubles = {}) {
    troubles.flip_step = step;
    troubles.flip_ballast = troubles.ballast > 0;
    return troubles;
  }
  // `others` happens to all, `flip` to one of every `period` instead.
  void make_some(int count, std::uint64_t steps, const FakeTroubles& others, int number,
                 const FakeTroubles& flip, int period = 100) {
    for (int i = 0; i < count; ++i)
      workers_.push_back(std::make_unique<TestWorker>(i, secret_.dir(), steps,
                                                      i % period == number ? flip : others));
  }
};

TEST_F(EngineDivergedTest, AFlippedBitIsNamedAndRefusedAndTheOthersGoOn) {
  const std::string expected = reference(30);
  make_some(3, 30, {}, 1, flipped(20));
  tell({0, 1, 2}, form(1, wire::FORM_START, {0, 1, 2}));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(at(i).until_diverged(), std::vector<std::uint32_t>{1});
    EXPECT_NE(at(i).failure().message().find("round 20 of step 21: part 20 of 64"),
              std::string::npos);
    EXPECT_FALSE(at(i).failure().permanent());
  }
  EXPECT_FALSE(at(1).standing().has_state());  // it will not give it to anybody
  EXPECT_EQ(at(1).standing().held_size(), 0);
  abort({0, 1, 2}, 2);
  for (const int worker : {0, 2}) {
    EXPECT_EQ(at(worker).standing().seq(), 20u);  // nobody has applied the round
    EXPECT_GT(at(worker).standing().held_size(), 0);
  }
  wire::WorkerCommand command = form(2, wire::FORM_RECOVER, {0, 2});
  command.mutable_form()->set_base_seq(20);
  tell({0, 2}, command);
  for (const int worker : {0, 2}) EXPECT_TRUE(at(worker).until_phase(wire::WORKER_FINISHED));
  EXPECT_EQ(at(0).lines("weights=").at(0), expected);
}

TEST_F(EngineDivergedTest, AFlippedBitAnywhereIsFoundWithinAsManyRoundsAsThereAreParts) {
  const FakeTroubles troubles{.ballast = 5000};
  make_some(3, 100, troubles, 2, flipped(3, troubles));
  tell({0, 1, 2}, form(1, wire::FORM_START, {0, 1, 2}));
  EXPECT_EQ(at(0).until_diverged(), std::vector<std::uint32_t>{2});
  EXPECT_LE(at(0).standing().seq(), 3u + kStateParts);
}

// Its bit is of a part that no vote looks at before round 64: all of the state is compared before a
// checkpoint is begun, so that none is written with it.
TEST_F(EngineDivergedTest, AFlippedBitIsFoundBeforeACheckpointIsBegun) {
  const FakeTroubles troubles{.checkpoint_every = 4, .ballast = 5000};
  make_some(3, 40, troubles, 0, flipped(5, troubles));
  tell({0, 1, 2}, comparing(form(1, wire::FORM_START, {0, 1, 2})));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(at(i).until_diverged(), std::vector<std::uint32_t>{0});
  EXPECT_EQ(at(0).standing().seq(), 8u);
  EXPECT_FALSE(at(0).standing().has_state());
  EXPECT_EQ(at(0).checkpoints(), std::vector<std::uint64_t>{4});
  EXPECT_NE(at(1).failure().message().find("round 8 of step 9: the state is"), std::string::npos)
      << at(1).failure().message();
  // The others begin the checkpoint that was due.
  abort({1, 2}, 2);
  wire::WorkerCommand command = comparing(form(2, wire::FORM_RECOVER, {1, 2}));
  command.mutable_form()->set_base_seq(8);
  tell({1, 2}, command);
  for (const int worker : {1, 2}) EXPECT_TRUE(at(worker).until_phase(wire::WORKER_FINISHED));
  ASSERT_FALSE(at(1).checkpoints().empty());
  EXPECT_EQ(at(1).checkpoints().front(), 8u);
}

TEST_F(EngineDivergedTest, TheLastStateIsComparedBeforeItIsWritten) {
  const FakeTroubles troubles{.checkpoint_every = 100, .ballast = 5000};
  make_some(3, 10, troubles, 0, flipped(9, troubles));
  tell({0, 1, 2}, comparing(form(1, wire::FORM_START, {0, 1, 2})));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(at(i).until_diverged(), std::vector<std::uint32_t>{0});
  EXPECT_EQ(at(0).standing().seq(), 10u);
  EXPECT_TRUE(at(0).checkpoints().empty());
}

// A build among the members that does not compare: what was, is.
TEST_F(EngineDivergedTest, WithoutTheWordOfTheFormNothingIsComparedBeforeACheckpoint) {
  make(2, 10, {.checkpoint_every = 4});
  tell({0, 1}, form(1, wire::FORM_START, {0, 1}));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(at(i).until_phase(wire::WORKER_FINISHED));
  EXPECT_EQ(at(0).checkpoints().back(), 10u);
}

TEST_F(EngineDivergedTest, WithoutAMajorityAllDropTheirStateAndBeginAnew) {
  const std::string expected = reference(30);
  make_some(4, 30, {}, 1, flipped(20), 2);
  tell({0, 1, 2, 3}, form(1, wire::FORM_START, {0, 1, 2, 3}));
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(at(i).until_diverged(), (std::vector<std::uint32_t>{0, 1, 2, 3}));
    EXPECT_FALSE(at(i).standing().has_state());
  }
  tell({0, 1, 2, 3}, form(2, wire::FORM_START, {0, 1, 2, 3}));
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(at(i).until_phase(wire::WORKER_FINISHED));
  EXPECT_EQ(at(0).lines("weights=").at(0), expected);
}

}  // namespace
}  // namespace rubato::worker
