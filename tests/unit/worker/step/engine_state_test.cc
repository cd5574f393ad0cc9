// StepEngine: states that differ between members, and what a START makes of a state.
#include "tests/unit/worker/step/engine_fixture.h"

#include <array>
#include <atomic>

namespace rubato::worker {
namespace {

using EngineStateTest = EngineFixture;

TEST_F(EngineStateTest, AFlippedBitIsNamedAndRefusedAndTheOthersGoOn) {
  const std::string expected = reference(30);
  FakeTroubles flipped;
  flipped.flip_step = 20;
  for (int i = 0; i < 3; ++i) {
    workers_.push_back(
        std::make_unique<TestWorker>(i, secret_.dir(), 30, i == 1 ? flipped : FakeTroubles{}));
  }
  tell({0, 1, 2}, form(1, wire::FORM_START, {0, 1, 2}));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(at(i).until_diverged(), std::vector<std::uint32_t>{1});
    EXPECT_NE(at(i).failure().message().find("round 20 of step 21: part 20 of 64"),
              std::string::npos);
    EXPECT_FALSE(at(i).failure().permanent());
    EXPECT_NE(at(i).difference().find("at pod-0/0#1, pod-2/0#1"), std::string::npos)
        << at(i).difference();
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

TEST_F(EngineStateTest, AFlippedBitAnywhereIsFoundWithinAsManyRoundsAsThereAreParts) {
  FakeTroubles troubles;
  troubles.ballast = 5000;
  FakeTroubles flipped = troubles;
  flipped.flip_step = 3;
  flipped.flip_ballast = true;
  for (int i = 0; i < 3; ++i) {
    workers_.push_back(
        std::make_unique<TestWorker>(i, secret_.dir(), 100, i == 2 ? flipped : troubles));
  }
  tell({0, 1, 2}, form(1, wire::FORM_START, {0, 1, 2}));
  EXPECT_EQ(at(0).until_diverged(), std::vector<std::uint32_t>{2});
  EXPECT_LE(at(0).standing().seq(), 3u + kStateParts);
}

// One node has other weights to start from. The first vote that would look at them is that of round
// 63; nothing is computed with them.
TEST_F(EngineStateTest, WhoStartsFromOtherWeightsIsFoundBeforeTheFirstRound) {
  const FakeTroubles right{.ballast = 5000};
  FakeTroubles wrong = right;
  wrong.starts_otherwise = true;
  for (int i = 0; i < 3; ++i) {
    workers_.push_back(std::make_unique<TestWorker>(i, secret_.dir(), 10, i == 1 ? wrong : right));
  }
  wire::WorkerCommand command = form(1, wire::FORM_START, {0, 1, 2});
  command.mutable_form()->set_compare_states(true);
  tell({0, 1, 2}, command);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(at(i).until_diverged(), std::vector<std::uint32_t>{1});
    EXPECT_EQ(at(i).standing().seq(), 0u);
  }
  EXPECT_FALSE(at(1).standing().has_state());
  abort({0, 2}, 2);
  command = form(2, wire::FORM_RECOVER, {0, 2});
  command.mutable_form()->set_compare_states(true);
  tell({0, 2}, command);
  for (const int worker : {0, 2}) EXPECT_TRUE(at(worker).until_phase(wire::WORKER_FINISHED));
}

// Its bit is of a part that no vote looks at before round 64: all of the state is compared before a
// checkpoint is begun, so that none is written with it.
TEST_F(EngineStateTest, AFlippedBitIsFoundBeforeACheckpointIsBegun) {
  FakeTroubles troubles{.checkpoint_every = 4, .ballast = 5000};
  FakeTroubles flipped = troubles;
  flipped.flip_step = 5;
  flipped.flip_ballast = true;
  for (int i = 0; i < 3; ++i) {
    workers_.push_back(
        std::make_unique<TestWorker>(i, secret_.dir(), 40, i == 0 ? flipped : troubles));
  }
  wire::WorkerCommand command = form(1, wire::FORM_START, {0, 1, 2});
  command.mutable_form()->set_compare_states(true);
  tell({0, 1, 2}, command);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(at(i).until_diverged(), std::vector<std::uint32_t>{0});
  EXPECT_EQ(at(0).standing().seq(), 8u);
  EXPECT_FALSE(at(0).standing().has_state());
  EXPECT_TRUE(at(0).until([](const wire::WorkerStanding& s) { return s.checkpoint_step() == 4; }));
  EXPECT_EQ(at(0).checkpoints(), std::vector<std::uint64_t>{4});
  EXPECT_NE(at(1).failure().message().find("round 8 of step 9: the state is"), std::string::npos)
      << at(1).failure().message();
  // The others begin the checkpoint that was due.
  abort({1, 2}, 2);
  command = form(2, wire::FORM_RECOVER, {1, 2});
  command.mutable_form()->set_base_seq(8);
  command.mutable_form()->set_compare_states(true);
  tell({1, 2}, command);
  for (const int worker : {1, 2}) EXPECT_TRUE(at(worker).until_phase(wire::WORKER_FINISHED));
  ASSERT_FALSE(at(1).checkpoints().empty());
  EXPECT_EQ(at(1).checkpoints().front(), 8u);
}

// Parked members have no links over which they could compare: each says what it holds.
TEST_F(EngineStateTest, WhoStandsStillSaysTheDigestOfAllThatItHolds) {
  const auto gate = std::make_shared<Gate>();
  FakeTroubles troubles{.ballast = 5000};
  troubles.on_compute = [gate](std::uint64_t step, std::uint32_t) {
    if (step == 5) gate->pass();
  };
  FakeTroubles flipped = troubles;
  flipped.flip_step = 3;
  flipped.flip_ballast = true;
  for (int i = 0; i < 3; ++i) {
    workers_.push_back(
        std::make_unique<TestWorker>(i, secret_.dir(), 40, i == 1 ? flipped : troubles));
  }
  tell({0, 1, 2}, form(1, wire::FORM_START, {0, 1, 2}));
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(at(i).until([](const wire::WorkerStanding& s) { return s.step() == 5; }));
    EXPECT_EQ(at(i).standing().parked_digest(), 0u);
  }
  abort({0, 1, 2}, 2);
  gate->open();
  wire::WorkerCommand command = form(2, wire::FORM_RECOVER, {0, 1, 2});
  command.mutable_form()->set_base_seq(5);
  command.mutable_form()->set_parked(true);
  tell({0, 1, 2}, command);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(at(i).until([](const wire::WorkerStanding& s) {
      return s.phase() == wire::WORKER_PARKED && s.parked_digest() != 0;
    }));
  }
  EXPECT_EQ(at(0).standing().parked_digest(), at(2).standing().parked_digest());
  EXPECT_NE(at(0).standing().parked_digest(), at(1).standing().parked_digest());
  abort({0, 2}, 3);
  command = form(3, wire::FORM_RECOVER, {0, 2});
  command.mutable_form()->set_base_seq(5);
  tell({0, 2}, command);
  for (const int worker : {0, 2}) EXPECT_TRUE(at(worker).until_phase(wire::WORKER_FINISHED));
  EXPECT_EQ(at(0).standing().parked_digest(), 0u);
}

TEST_F(EngineStateTest, WithoutAMajorityAllDropTheirStateAndBeginAnew) {
  const std::string expected = reference(30);
  FakeTroubles flipped;
  flipped.flip_step = 20;
  for (int i = 0; i < 4; ++i) {
    workers_.push_back(
        std::make_unique<TestWorker>(i, secret_.dir(), 30, i % 2 == 1 ? flipped : FakeTroubles{}));
  }
  tell({0, 1, 2, 3}, form(1, wire::FORM_START, {0, 1, 2, 3}));
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(at(i).until_diverged(), (std::vector<std::uint32_t>{0, 1, 2, 3}));
    EXPECT_FALSE(at(i).standing().has_state());
  }
  tell({0, 1, 2, 3}, form(2, wire::FORM_START, {0, 1, 2, 3}));
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(at(i).until_phase(wire::WORKER_FINISHED));
  EXPECT_EQ(at(0).lines("weights=").at(0), expected);
}

TEST_F(EngineStateTest, TheAttemptsAtTheOpenStepGoOnFromACheckpoint) {
  const FakeTroubles troubles{.overflow_step = 4, .loads_attempts = 1};
  make(1, 8, troubles);
  wire::WorkerCommand command = form(1, wire::FORM_START, {0});
  command.mutable_form()->set_from_checkpoint(true);
  command.mutable_form()->set_checkpoint_step(4);
  tell({0}, command);
  EXPECT_TRUE(at(0).until_phase(wire::WORKER_FINISHED));
  EXPECT_EQ(at(0).standing().seq(), 8u) << "the first attempt was before the checkpoint";
}

// Rank 0 or not: once a script hears of the end, its memory is no longer the job's. Copies may be
// in use for a while.
TEST_F(EngineStateTest, WhoHasFinishedHasKeptItsStateApart) {
  const auto tries = std::make_shared<std::array<std::atomic<int>, 2>>();
  for (std::size_t i = 0; i < tries->size(); ++i) {
    FakeTroubles troubles;
    troubles.on_keep_apart = [this, i, tries]() -> Status {
      EXPECT_NE(workers_[i]->standing().phase(), wire::WORKER_FINISHED);
      return ++(*tries)[i] < 3 ? Status(Error(Code::kUnavailable, "in use")) : ok();
    };
    workers_.push_back(
        std::make_unique<TestWorker>(static_cast<int>(i), secret_.dir(), 3, troubles));
  }
  tell({0, 1}, form(1, wire::FORM_START, {0, 1}));
  for (const int worker : {0, 1}) EXPECT_TRUE(at(worker).until_phase(wire::WORKER_FINISHED));
  for (const auto& each : *tries) EXPECT_EQ(each, 3);
}

// The job is done: its last checkpoint stands, and no memory for a precaution is no failure.
TEST_F(EngineStateTest, WhoCannotKeepItsStateApartHasFinishedAllTheSame) {
  FakeTroubles troubles;
  troubles.on_keep_apart = [] { return Status(Error(Code::kExhausted, "no memory")); };
  make(2, 3, troubles);
  tell({0, 1}, form(1, wire::FORM_START, {0, 1}));
  for (const int worker : {0, 1}) {
    EXPECT_TRUE(at(worker).until_phase(wire::WORKER_FINISHED));
    EXPECT_EQ(at(worker).failure().reason(), "");
  }
}

// It went between the list and the look: the one before counts. Where all have, others may have
// come: that is no "none", and nobody asks again without a pause.
TEST_F(EngineStateTest, ACheckpointThatHasJustGoneLeavesTheOneBefore) {
  const auto looks = std::make_shared<std::atomic<int>>(0);
  FakeTroubles troubles;
  troubles.checkpoint_every = 1000;
  troubles.listed = {5, 9};
  troubles.on_look = [looks](std::uint64_t step) -> Result<FoundCheckpoint> {
    if (step == 9 && ++*looks < 100) return Error(Code::kNotFound, "it has gone");
    return FoundCheckpoint{step, 7};
  };
  make(1, 10, troubles);
  EXPECT_EQ(at(0).standing().checkpoint_step(), 5u);
  EXPECT_EQ(*looks, 1);
  troubles.listed = {9};
  make(1, 10, troubles);
  EXPECT_FALSE(at(1).standing().has_checkpoint());
  EXPECT_EQ(*looks, 2);
}

}  // namespace
}  // namespace rubato::worker
