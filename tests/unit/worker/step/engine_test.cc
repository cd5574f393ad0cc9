// Engines in one process with fake replicas: the protocol without the arithmetic. The whole worker
// with the real model is tests/integration/worker/worker_alone.
#include "tests/unit/worker/step/engine_fixture.h"
#include "tests/unit/worker/support/job_secret.h"
#include "worker/protocol/members.h"
#include "worker/protocol/shares.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include <gtest/gtest.h>

namespace rubato::worker {
namespace {

class EngineTest : public EngineFixture {
 protected:
  // Worker 0 holds a state and takes no step.
  void park(std::uint64_t generation) {
    wire::WorkerCommand order = form(generation, wire::FORM_START, {0});
    order.mutable_form()->set_parked(true);
    tell({0}, order);
    ASSERT_TRUE(at(0).until_phase(wire::WORKER_PARKED));
  }
  // Worker 1 pulls the state of worker 0.
  void follow(std::uint64_t generation) {
    wire::WorkerCommand order;
    order.mutable_follow()->set_generation(generation);
    *order.mutable_follow()->mutable_donor() = at(0).standing().id();
    *order.mutable_follow()->mutable_donor_address() = at(0).standing().listen();
    tell({1}, order);
  }
};

TEST_F(EngineTest, AnyNumberOfWorkersEndsWithTheSameWeights) {
  const std::string expected = reference(20);
  make(3, 20);
  tell({0, 1, 2}, form(1, wire::FORM_START, {0, 1, 2}));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(at(i).until_phase(wire::WORKER_FINISHED));
  EXPECT_EQ(at(0).lines("weights=").at(0), expected);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(at(i).lines("generation=1").size(), 20u);  // a loss line per step from each
  }
  EXPECT_EQ(at(0).lines("validation step=").size(), 4u);  // 5, 10, 15 and the end
  EXPECT_EQ(at(1).lines("validation step=5 "), at(0).lines("validation step=5 "));
  EXPECT_EQ(at(0).standing().validation_step(), 20u);
  EXPECT_EQ(at(1).standing().validation_step(), 15u);  // rank 0 alone does the last one
  EXPECT_GT(at(0).standing().noise_scale(), 0);        // measured in the 16th step
  for (int i = 1; i < 3; ++i)
    EXPECT_EQ(at(i).standing().noise_scale(), at(0).standing().noise_scale());
}

// It is said, and no number is reported in its place; the training goes on.
TEST_F(EngineTest, AValidationLossThatIsNotFiniteIsNoNumber) {
  FakeTroubles troubles;
  troubles.nan_validation_step = 10;
  make(3, 20, troubles);
  tell({0, 1, 2}, form(1, wire::FORM_START, {0, 1, 2}));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(at(i).until_phase(wire::WORKER_FINISHED));
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(at(i).lines("validation step=10 "),
              std::vector<std::string>{"validation step=10 loss=nan"});
  EXPECT_EQ(at(0).standing().validation_step(), 20u);
}

TEST_F(EngineTest, ALastValidationLossThatIsNotFiniteLeavesTheOneBefore) {
  FakeTroubles troubles;
  troubles.nan_validation_step = 20;
  make(1, 20, troubles);
  tell({0}, form(1, wire::FORM_START, {0}));
  EXPECT_TRUE(at(0).until_phase(wire::WORKER_FINISHED));
  EXPECT_EQ(at(0).lines("validation step=20 "),
            std::vector<std::string>{"validation step=20 loss=nan"});
  EXPECT_EQ(at(0).standing().validation_step(), 15u);
}

// A script that is past its loop looks no more, and that is no failure.
TEST_F(EngineTest, EachMemberIsShownTheLastState) {
  const auto shown = std::make_shared<std::atomic<int>>(0);
  FakeTroubles troubles;
  troubles.on_show = [shown](std::uint64_t step) -> Status {
    EXPECT_EQ(step, 6u);
    if (++*shown == 2) return Error(Code::kCancelled, "the script's loop is over");
    return ok();
  };
  make(3, 6, troubles);
  tell({0, 1, 2}, form(1, wire::FORM_START, {0, 1, 2}));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(at(i).until_phase(wire::WORKER_FINISHED));
  EXPECT_EQ(*shown, 3);
}

TEST_F(EngineTest, WhoCannotTakeTheLastStateHasFailed) {
  FakeTroubles troubles;
  troubles.on_show = [](std::uint64_t) {
    return Status(Error(Code::kInvalid, "no (train.py:7)").set_reason("ProgramFailed"));
  };
  make(1, 6, troubles);
  tell({0}, form(1, wire::FORM_START, {0}));
  EXPECT_EQ(at(0).until_failure().reason(), "ProgramFailed");
  EXPECT_NE(at(0).standing().phase(), wire::WORKER_FINISHED);
}

TEST_F(EngineTest, AnOverflowIsRedoneTheSameWayByAll) {
  FakeTroubles troubles;
  troubles.overflow_step = 4;
  const std::string expected = reference(8, troubles);
  EXPECT_NE(expected, reference(8));  // exponents are part of the state
  make(2, 8, troubles);
  tell({0, 1}, form(1, wire::FORM_START, {0, 1}));
  EXPECT_TRUE(at(0).until_phase(wire::WORKER_FINISHED));
  EXPECT_EQ(at(0).lines("weights=").at(0), expected);
  EXPECT_EQ(at(0).standing().seq(), 9u);
}

// The reduction returns success and garbage, at one member or alike at all.
TEST_F(EngineTest, AWrongSumIsNotAppliedAndTheJobGoesOn) {
  const std::string expected = reference(12);
  for (const std::vector<int>& at_whom : {std::vector<int>{1}, std::vector<int>{0, 1, 2}}) {
    workers_.clear();
    for (int i = 0; i < 3; ++i) {
      FakeTroubles troubles;
      if (std::ranges::count(at_whom, i) > 0)
        troubles.on_reduced = [is_over = false](std::uint64_t step, Buffer reduced) mutable {
          if (step != 7 || std::exchange(is_over, true)) return;
          static_cast<std::int32_t*>(reduced.address())[321] += 1 << 20;
        };
      workers_.push_back(std::make_unique<TestWorker>(i, secret_.dir(), 12, troubles));
    }
    tell({0, 1, 2}, form(1, wire::FORM_START, {0, 1, 2}));
    for (int i = 0; i < 3; ++i) {
      const wire::Failure failure = at(i).until_failure();
      EXPECT_EQ(failure.reason(), "WrongSum");
      EXPECT_EQ(failure.scope(), wire::FAILURE_SCOPE_ATTEMPT);
      EXPECT_NE(failure.message().find(at_whom.size() == 1 ? "rank 1 got" : "ranks 0, 1, 2 got"),
                std::string::npos)
          << failure.message();
    }
    abort({0, 1, 2}, 2);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(at(i).standing().seq(), 7u);  // nobody has applied the round
      EXPECT_FALSE(at(i).standing().reduced());
      EXPECT_GT(at(i).standing().held_size(), 0);  // and what was computed of it is kept
    }
    wire::WorkerCommand command = form(2, wire::FORM_RECOVER, {0, 1, 2});
    command.mutable_form()->set_base_seq(7);
    tell({0, 1, 2}, command);
    EXPECT_TRUE(at(0).until_phase(wire::WORKER_FINISHED));
    EXPECT_EQ(at(0).lines("weights=").at(0), expected);
  }
}

// At one member, each time: the second time its links and what it has added tell who it is.
TEST_F(EngineTest, WhoMakesASumWrongAgainIsLeftOut) {
  const std::string expected = reference(12);
  for (int i = 0; i < 2; ++i) {
    FakeTroubles troubles;
    if (i == 1)
      troubles.on_reduced = [](std::uint64_t step, Buffer reduced) {
        if (step == 7) static_cast<std::int32_t*>(reduced.address())[321] += 1 << 20;
      };
    workers_.push_back(std::make_unique<TestWorker>(i, secret_.dir(), 12, troubles));
  }
  tell({0, 1}, form(1, wire::FORM_START, {0, 1}));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(at(i).until_failure().reason(), "WrongSum");
  abort({0, 1}, 2);
  wire::WorkerCommand command = form(2, wire::FORM_RECOVER, {0, 1});
  command.mutable_form()->set_base_seq(7);
  tell({0, 1}, command);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(at(i).until_diverged(), std::vector<std::uint32_t>{1});
    EXPECT_NE(at(i).difference().find("wrong again, by pod-1/0#1"), std::string::npos)
        << at(i).difference();
  }
  EXPECT_FALSE(at(1).standing().has_state());
  abort({0}, 3);
  EXPECT_EQ(at(0).standing().seq(), 7u);
  EXPECT_FALSE(at(0).standing().reduced());
  command = form(3, wire::FORM_RECOVER, {0});
  command.mutable_form()->set_base_seq(7);
  tell({0}, command);
  EXPECT_TRUE(at(0).until_phase(wire::WORKER_FINISHED));
  EXPECT_EQ(at(0).lines("weights=").at(0), expected);
}

// At all alike: nobody is to blame, and what the device adds by is not offered again at once.
TEST_F(EngineTest, WhereADeviceAddsWronglyAgainLinksAreToAdd) {
  FakeTroubles troubles;
  troubles.on_reduced = [times = 0](std::uint64_t step, Buffer reduced) mutable {
    if (step == 7 && ++times <= 2) static_cast<std::int32_t*>(reduced.address())[321] += 1 << 20;
  };
  make(2, 12, troubles);
  wire::WorkerCommand command = form(1, wire::FORM_START, {0, 1});
  command.mutable_form()->set_collective("nccl-2.28.9");
  tell({0, 1}, command);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(at(i).until_failure().reason(), "WrongSum");
    EXPECT_EQ(at(i).distrusts(), 0);
  }
  abort({0, 1}, 2);
  command = form(2, wire::FORM_RECOVER, {0, 1});
  command.mutable_form()->set_base_seq(7);
  command.mutable_form()->set_collective("nccl-2.28.9");
  tell({0, 1}, command);
  for (int i = 0; i < 2; ++i)
    EXPECT_TRUE(at(i).until([&](const wire::WorkerStanding&) { return at(i).distrusts() == 1; }));
  abort({0, 1}, 3);
  command = form(3, wire::FORM_RECOVER, {0, 1});
  command.mutable_form()->set_base_seq(7);
  tell({0, 1}, command);
  EXPECT_TRUE(at(0).until_phase(wire::WORKER_FINISHED));
  EXPECT_EQ(at(0).failure().reason(), "WrongSum");
  EXPECT_EQ(at(0).distrusts(), 1);
}

TEST_F(EngineTest, ANonFiniteStepIsTriedAgainOnce) {
  FakeTroubles troubles;
  troubles.non_finite_step = 3;
  troubles.non_finite_times = 1;
  make(1, 6, troubles);
  tell({0}, form(1, wire::FORM_START, {0}));
  EXPECT_TRUE(at(0).until_phase(wire::WORKER_FINISHED));
}

TEST_F(EngineTest, NonFiniteTwiceWithTheSameBitsFailsTheJob) {
  FakeTroubles troubles;
  troubles.non_finite_step = 3;
  troubles.non_finite_times = 9;
  make(1, 6, troubles);
  tell({0}, form(1, wire::FORM_START, {0}));
  EXPECT_TRUE(at(0).until([&](const wire::WorkerStanding& s) { return s.seq() >= 4; }));
  while (at(0).failure().reason().empty()) {
    at(0).engine().beat();
    std::this_thread::yield();
  }
  EXPECT_EQ(at(0).failure().reason(), "NonFinite");
  EXPECT_TRUE(at(0).failure().permanent());
}

TEST_F(EngineTest, SurvivorsKeepWhatTheyComputed) {
  // Worker 1 never gets past step 5: it waits in its first micro-batch until it is let go.
  const auto gate = std::make_shared<Gate>();
  FakeTroubles stuck;
  stuck.on_compute = [gate](std::uint64_t step, std::uint32_t) {
    if (step == 5) gate->pass();
  };
  const std::string expected = reference(12);
  workers_.push_back(std::make_unique<TestWorker>(0, secret_.dir(), 12, FakeTroubles{}));
  workers_.push_back(std::make_unique<TestWorker>(1, secret_.dir(), 12, stuck));
  tell({0, 1}, form(1, wire::FORM_START, {0, 1}));
  for (const int worker : {0, 1})  // both: the one commits a moment before the other
    EXPECT_TRUE(at(worker).until([](const wire::WorkerStanding& s) { return s.step() == 5; }));
  abort({0, 1}, 2);  // worker 1 answers although its micro-batch never ends
  const wire::WorkerStanding standing = at(0).standing();
  EXPECT_EQ(standing.phase(), wire::WORKER_ABORTED);
  EXPECT_EQ(standing.seq(), 5u);
  EXPECT_EQ(at(1).standing().held_size(), 0);
  wire::WorkerCommand command = form(2, wire::FORM_RECOVER, {0});
  command.mutable_form()->set_base_seq(5);
  tell({0}, command);
  EXPECT_TRUE(at(0).until_phase(wire::WORKER_FINISHED));
  EXPECT_EQ(at(0).lines("weights=").at(0), expected);
  gate->open();
  EXPECT_TRUE(at(1).until_phase(wire::WORKER_ABORTED));
  EXPECT_EQ(at(1).standing().seq(), 5u);  // it held its own, and committed nothing more
}

// ---- A device that is lost ----

TEST_F(EngineTest, WhoseDeviceIsLostSaysSoAndEndsAndTheOthersGoOn) {
  const auto gate = std::make_shared<Gate>();
  FakeTroubles lost;
  lost.on_accumulate = [gate](std::uint64_t step) -> Status {
    if (step < 5) return ok();
    gate->pass();
    return Error(Code::kInternal, "an illegal memory access").set_reason(kDeviceLost);
  };
  const std::string expected = reference(12);
  for (const int number : {0, 1, 2})
    workers_.push_back(std::make_unique<TestWorker>(number, secret_.dir(), 12,
                                                    number == 1 ? lost : FakeTroubles{}));
  tell({0, 1, 2}, form(1, wire::FORM_START, {0, 1, 2}));
  for (const int worker : {0, 1, 2})
    EXPECT_TRUE(at(worker).until([](const wire::WorkerStanding& s) { return s.step() == 5; }));
  gate->open();
  EXPECT_EQ(at(1).until_failure().reason(), kDeviceLost);
  EXPECT_EQ(at(1).failure().scope(), wire::FAILURE_SCOPE_ATTEMPT);
  EXPECT_EQ(at(1).failure().message(), "an illegal memory access");
  EXPECT_EQ(at(1).until_ended(), kStuckStatus);
  abort({0, 2}, 2);
  wire::WorkerCommand command = form(2, wire::FORM_RECOVER, {0, 2});
  command.mutable_form()->set_base_seq(5);
  tell({0, 2}, command);
  for (const int worker : {0, 2}) EXPECT_TRUE(at(worker).until_phase(wire::WORKER_FINISHED));
  EXPECT_EQ(at(0).lines("weights=").at(0), expected);
}

// ---- A Form that says what changes ----

TEST_F(EngineTest, AChangeOfTheMembersIsTheSameAsAllOfThem) {
  const auto gate = std::make_shared<Gate>();
  const std::string expected = reference(12);
  make(3, 12, slowed_by(gate));
  const wire::WorkerCommand first = form(1, wire::FORM_START, {0, 1, 2});
  EXPECT_EQ(at(0).standing().members_of(), 0u);
  tell({0, 1, 2}, first);
  for (const int worker : {0, 1, 2})
    EXPECT_TRUE(at(worker).until([](const wire::WorkerStanding& s) { return s.step() >= 2; }));
  abort({0, 1, 2}, 2);
  const wire::WorkerStanding standing = at(1).standing();
  EXPECT_EQ(standing.members_of(), 1u);
  // 0 and 1 may stand one round apart.
  const bool is_level = at(0).standing().seq() == standing.seq();
  const wire::WorkerStanding& ahead =
      at(0).standing().seq() > standing.seq() ? at(0).standing() : standing;
  wire::WorkerCommand change = form(2, wire::FORM_RECOVER, {0, 1});
  change.mutable_form()->set_base_seq(ahead.seq());
  if (!is_level) *change.mutable_form()->mutable_decision() = ahead.last();
  ASSERT_TRUE(wire::name_change(*change.mutable_form(), 1, first.form().members()));
  EXPECT_EQ(change.form().members_size(), 0);
  for (const int worker : {0, 1}) {
    wire::Range& range = *change.mutable_form()->mutable_share()->add_ranges();
    const wire::MicroRange own =
        wire::even_share(static_cast<std::uint32_t>(1 - worker), 2, kFakeMicroBatches);
    range.set_begin(own.begin);  // not what it would take by itself
    range.set_end(own.end);
    tell({worker}, change);
    change.mutable_form()->clear_share();
  }
  gate->open();
  EXPECT_TRUE(at(0).until_phase(wire::WORKER_FINISHED));
  EXPECT_EQ(at(0).standing().members_of(), 2u);
  EXPECT_EQ(at(0).lines("weights=").at(0), expected);
}

TEST_F(EngineTest, AChangeOfMembersThatItDoesNotKnowIsSaidAndAllAreTaken) {
  const auto gate = std::make_shared<Gate>();
  make(2, 8, slowed_by(gate));
  const wire::WorkerCommand first = form(1, wire::FORM_START, {0, 1});
  tell({0, 1}, first);
  EXPECT_TRUE(at(0).until([](const wire::WorkerStanding& s) { return s.step() >= 1; }));
  abort({0, 1}, 3);
  wire::WorkerCommand whole = form(3, wire::FORM_RECOVER, {0});
  whole.mutable_form()->set_base_seq(at(0).standing().seq());
  wire::WorkerCommand change = whole;
  ASSERT_TRUE(wire::name_change(*change.mutable_form(), 2, first.form().members()));
  tell({0}, change);
  EXPECT_TRUE(at(0).until([](const wire::WorkerStanding& s) { return s.members_of() == 0; }));
  EXPECT_EQ(at(0).standing().generation(), 1u);
  tell({0}, whole);
  gate->open();
  EXPECT_TRUE(at(0).until_phase(wire::WORKER_FINISHED));
  EXPECT_EQ(at(0).standing().members_of(), 3u);
}

// ---- A bit flips in a worker's memory ----

TEST_F(EngineTest, TheLastStateIsComparedBeforeItIsWritten) {
  FakeTroubles troubles{.checkpoint_every = 100, .ballast = 5000};
  FakeTroubles flipped = troubles;
  flipped.flip_step = 9;
  flipped.flip_ballast = true;
  for (int i = 0; i < 3; ++i) {
    workers_.push_back(
        std::make_unique<TestWorker>(i, secret_.dir(), 10, i == 0 ? flipped : troubles));
  }
  wire::WorkerCommand command = form(1, wire::FORM_START, {0, 1, 2});
  command.mutable_form()->set_compare_states(true);
  tell({0, 1, 2}, command);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(at(i).until_diverged(), std::vector<std::uint32_t>{0});
  EXPECT_EQ(at(0).standing().seq(), 10u);
  EXPECT_TRUE(at(0).checkpoints().empty());
}

// A build among the members that does not compare: what was, is.
TEST_F(EngineTest, WithoutTheWordOfTheFormNothingIsComparedBeforeACheckpoint) {
  make(2, 10, {.checkpoint_every = 4});
  tell({0, 1}, form(1, wire::FORM_START, {0, 1}));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(at(i).until_phase(wire::WORKER_FINISHED));
  EXPECT_EQ(at(0).checkpoints().back(), 10u);
}

TEST_F(EngineTest, ANewcomerFollowsAndJoinsAtACommit) {
  const std::string expected = reference(400);
  const auto gate = std::make_shared<Gate>();
  make(3, 400, slowed_by(gate));
  tell({0, 1}, form(1, wire::FORM_START, {0, 1}));
  wire::WorkerCommand follow;
  follow.mutable_follow()->set_generation(1);
  *follow.mutable_follow()->mutable_donor() = at(0).standing().id();
  *follow.mutable_follow()->mutable_donor_address() = at(0).standing().listen();
  tell({2}, follow);
  ASSERT_TRUE(at(2).until_caught_up());
  tell({0, 1, 2}, form(2, wire::FORM_PLANNED, {0, 1, 2}));
  EXPECT_TRUE(at(2).until([](const wire::WorkerStanding& s) { return s.generation() == 2; }));
  gate->open();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(at(i).until_phase(wire::WORKER_FINISHED));
  EXPECT_EQ(at(0).lines("weights=").at(0), expected);
  EXPECT_FALSE(at(2).lines("gpus=3 generation=2").empty()) << "joined after the end";
  for (int i = 0; i < 3; ++i) EXPECT_EQ(at(i).standing().seq(), 400u) << "a round was redone";
  EXPECT_EQ(at(2).standing().noise_scale(), at(0).standing().noise_scale());
}

// The donor died before the order came: the next order is obeyed at once, and not when the donor
// has been dialed for long enough.
TEST_F(EngineTest, WhatComesAfterAFollowThatLeadsNowhereDoesNotWaitForIt) {
  make(2, 30);
  wire::WorkerCommand follow;
  follow.mutable_follow()->set_generation(1);
  *follow.mutable_follow()->mutable_donor() = at(0).standing().id();
  *follow.mutable_follow()->mutable_donor_address() = at(0).standing().listen();
  const wire::WorkerCommand to_the_living = follow;
  follow.mutable_follow()->mutable_donor()->set_pod_uid("gone");
  follow.mutable_follow()->mutable_donor_address()->set_port(1);  // nobody listens
  tell({1}, follow);
  ASSERT_TRUE(at(1).until_phase(wire::WORKER_FOLLOWING));
  wire::WorkerCommand look;
  look.mutable_look()->set_number(7);
  const MonoTime asked = SystemClock().now();
  tell({1}, look);
  EXPECT_TRUE(at(1).until([](const wire::WorkerStanding& s) { return s.looked() == 7; }));
  EXPECT_LT(SystemClock().now() - asked, kFormLimit / 2);
  EXPECT_EQ(at(1).standing().phase(), wire::WORKER_READY);

  tell({1}, follow);
  ASSERT_TRUE(at(1).until_phase(wire::WORKER_FOLLOWING));
  wire::WorkerCommand parked = form(1, wire::FORM_START, {0});
  parked.mutable_form()->set_parked(true);
  tell({0}, parked);
  ASSERT_TRUE(at(0).until_phase(wire::WORKER_PARKED));
  tell({1}, to_the_living);
  tell({1}, to_the_living);  // said again: it goes on
  EXPECT_TRUE(at(1).until_caught_up());
}

// The first of two donors is gone, and is still dialed when the rest comes.
TEST_F(EngineTest, AStopBehindAFollowStandsAndAFollowBehindAStopEndsIt) {
  const auto gate = std::make_shared<Gate>();
  make(2, 400, slowed_by(gate));
  wire::WorkerCommand follow;
  follow.mutable_follow()->set_generation(1);
  *follow.mutable_follow()->mutable_donor() = at(0).standing().id();
  *follow.mutable_follow()->mutable_donor_address() = at(0).standing().listen();
  const wire::WorkerCommand to_the_living = follow;
  follow.mutable_follow()->mutable_donor()->set_pod_uid("gone");
  follow.mutable_follow()->mutable_donor_address()->set_port(1);  // nobody listens
  wire::WorkerCommand stop;
  stop.mutable_request()->set_stop(true);
  tell({1}, follow);
  tell({1}, to_the_living);
  tell({1}, stop);
  ASSERT_TRUE(at(1).until_phase(wire::WORKER_STOPPED));
  tell({0}, form(1, wire::FORM_START, {0}));
  ASSERT_TRUE(at(0).until([](const wire::WorkerStanding& s) { return s.step() > 3; }));
  tell({1}, to_the_living);
  ASSERT_TRUE(at(1).until_caught_up());
  tell({0, 1}, form(2, wire::FORM_PLANNED, {0, 1}));
  ASSERT_TRUE(at(1).until([](const wire::WorkerStanding& s) { return s.generation() == 2; }));
  gate->open();
  for (const int number : {0, 1}) EXPECT_TRUE(at(number).until_phase(wire::WORKER_FINISHED));
}

TEST_F(EngineTest, ADonorWaitsForItsFollowerButNotForEver) {
  FakeTroubles big;
  big.ballast = std::size_t{4} << 20;  // more bytes than the sockets between hold
  const auto gate = std::make_shared<Gate>();
  big.on_compute = [gate](std::uint64_t step, std::uint32_t) {
    if (step == 3) gate->pass();
  };
  workers_.push_back(std::make_unique<TestWorker>(1, secret_.dir(), 1000000, big));
  tell({0}, form(1, wire::FORM_START, {0}));
  // A follower that asks for the state and never reads it, but connects the links of its
  // generation.
  HostDevice device;
  Fleet others(1, secret_.dir(), device);
  FleetMember& slow = others.members[0];
  const wire::WorkerStanding donor = at(0).standing();
  const Peer to{
      {donor.id().pod_uid(), 0, 1}, "127.0.0.1", static_cast<std::uint16_t>(donor.listen().port())};
  const auto state = slow.hub->dial(to, 1, "state", soon(), {});
  ASSERT_TRUE(state.ok());
  ASSERT_TRUE(state.value()->receive_frame(soon()).ok());  // it is served
  wire::WorkerCommand planned = form(2, wire::FORM_PLANNED, {0});
  wire::Member& second = *planned.mutable_form()->add_members();
  second.mutable_id()->set_pod_uid(slow.peer.name.pod_uid);
  second.mutable_id()->set_incarnation(slow.peer.name.incarnation);
  second.mutable_address()->set_host(slow.peer.host);
  second.mutable_address()->set_port(slow.peer.port);
  tell({0}, planned);
  const auto links = slow.factory->create({2, {to, slow.peer}, 1}, soon());
  ASSERT_TRUE(links.ok()) << links.error().to_string();
  ASSERT_TRUE(
      at(0).until([](const wire::WorkerStanding& s) { return s.prepared_generation() == 2; }));
  gate->open();
  ASSERT_TRUE(at(0).until([](const wire::WorkerStanding& s) { return s.generation() == 2; }));
  EXPECT_EQ(at(0).standing().seq(), 3u + kLevelRounds + 1);
}

TEST_F(EngineTest, AParkedWorkerGivesItsStateToANewcomer) {
  make(2, 30);
  park(1);
  follow(1);
  ASSERT_TRUE(at(1).until_caught_up());
  abort({0, 1}, 2);
  EXPECT_TRUE(at(1).standing().has_state());  // pulled in full: good enough to recover with
  tell({0, 1}, form(2, wire::FORM_RECOVER, {0, 1}));
  EXPECT_TRUE(at(0).until_phase(wire::WORKER_FINISHED));
  EXPECT_TRUE(at(1).until_phase(wire::WORKER_FINISHED));
  EXPECT_EQ(at(0).lines("weights=").at(0), reference(30));
}

// A copy of the state that does not fit into memory is not one that comes with time.
TEST_F(EngineTest, WhoCannotCopyItsStateTurnsANewcomerAway) {
  const auto tries = std::make_shared<std::atomic<int>>(0);
  FakeTroubles troubles;
  troubles.on_snapshot = [tries] {
    return ++*tries == 1 ? Status(Error(Code::kExhausted, "no memory")) : ok();
  };
  make(2, 30, troubles);
  park(1);
  follow(1);
  ASSERT_TRUE(at(1).until([&](const wire::WorkerStanding& s) {
    return *tries == 1 && s.phase() == wire::WORKER_READY;
  }));
  follow(1);
  ASSERT_TRUE(at(1).until_caught_up());
  EXPECT_EQ(*tries, 2);
}

// What it had saved of the last step was of another run.
TEST_F(EngineTest, AStateThatWasPulledIsSavedThoughItsStepWasSavedBefore) {
  make(2, 8, {.checkpoint_every = 100});
  tell({1}, form(1, wire::FORM_START, {1}));
  ASSERT_TRUE(at(1).until_phase(wire::WORKER_FINISHED));
  EXPECT_EQ(at(1).checkpoints(), std::vector<std::uint64_t>{8});
  park(2);
  follow(2);
  ASSERT_TRUE(at(1).until_caught_up());
  abort({0, 1}, 3);
  tell({0, 1}, form(3, wire::FORM_RECOVER, {1, 0}));
  for (const int worker : {0, 1}) EXPECT_TRUE(at(worker).until_phase(wire::WORKER_FINISHED));
  EXPECT_EQ(at(1).checkpoints(), (std::vector<std::uint64_t>{8, 8}));
}

// Who was rank 0 when it was skipped asks who is now, and once.
TEST_F(EngineTest, ACheckpointThatIsOwedIsWrittenOnceByWhoIsRankZeroThen) {
  const auto has_room = std::make_shared<std::atomic<bool>>(false);
  FakeTroubles troubles = slowed_by(std::make_shared<Gate>());
  troubles.checkpoint_every = 100'000;
  troubles.on_snapshot = [has_room]() -> Status {
    if (*has_room) return ok();
    return Error(Code::kExhausted, "no memory for a copy");
  };
  make(2, 1'000'000, troubles);
  tell({0, 1}, form(1, wire::FORM_START, {0, 1}));
  wire::WorkerCommand request;
  request.mutable_request()->set_checkpoint(true);
  tell({0}, request);
  ASSERT_TRUE(
      at(0).until([](const wire::WorkerStanding& s) { return s.checkpoints_skipped() > 0; }));
  tell({0, 1}, form(2, wire::FORM_PLANNED, {1, 0}));
  ASSERT_TRUE(at(1).until([](const wire::WorkerStanding& s) { return s.generation() == 2; }));
  *has_room = true;
  ASSERT_TRUE(at(1).until([](const wire::WorkerStanding& s) { return s.has_checkpoint(); }));
  const std::uint64_t enough = at(1).standing().step() + 20;
  ASSERT_TRUE(at(1).until([&](const wire::WorkerStanding& s) { return s.step() >= enough; }));
  EXPECT_EQ(at(1).checkpoints().size(), 1u);
  EXPECT_TRUE(at(0).checkpoints().empty());
}

TEST_F(EngineTest, ADonorWhoseRecordsAreNotThoseOfItsStepsIsNotFollowed) {
  workers_.push_back(std::make_unique<TestWorker>(1, secret_.dir(), 30, FakeTroubles{}));
  HostDevice device;
  Fleet others(1, secret_.dir(), device);
  FleetMember& donor = others.members[0];
  wire::WorkerCommand follow;
  follow.mutable_follow()->set_generation(1);
  follow.mutable_follow()->mutable_donor()->set_pod_uid(donor.peer.name.pod_uid);
  follow.mutable_follow()->mutable_donor()->set_incarnation(donor.peer.name.incarnation);
  follow.mutable_follow()->mutable_donor_address()->set_host(donor.peer.host);
  follow.mutable_follow()->mutable_donor_address()->set_port(donor.peer.port);
  tell({0}, follow);
  const auto link = donor.hub->await({"pod-1", 0, 1}, 1, "state", soon());
  ASSERT_TRUE(link.ok()) << link.error().to_string();
  wire::StateFrame frame;
  wire::SnapshotHead& head = *frame.mutable_snapshot();
  head.set_step(3);
  head.set_records(std::uint64_t{1} << 60);
  head.add_section_bytes(kFakeSize * sizeof(std::int32_t));
  head.add_section_bytes(0);
  ASSERT_TRUE(link.value()->send_frame(frame.SerializeAsString(), soon()).ok());
  EXPECT_NE(at(0).until_suspicion().find("records"), std::string::npos);
  EXPECT_FALSE(at(0).standing().has_state());
}

TEST_F(EngineTest, RefusesWhatIsBelowItsFence) {
  make(1, 5);
  abort({0}, 7);
  tell({0}, form(6, wire::FORM_START, {0}));
  tell({0}, form(8, wire::FORM_START, {0}));
  EXPECT_TRUE(at(0).until_phase(wire::WORKER_FINISHED));
  EXPECT_EQ(at(0).standing().generation(), 8u);
  EXPECT_TRUE(at(0).lines("generation=6").empty());
}

TEST_F(EngineTest, StopsAtOneCommitForAll) {
  make(2, 1000000);
  tell({0, 1}, form(1, wire::FORM_START, {0, 1}));
  EXPECT_TRUE(at(0).until([](const wire::WorkerStanding& s) { return s.step() > 3; }));
  wire::WorkerCommand request;
  request.mutable_request()->set_stop(true);
  request.mutable_request()->set_checkpoint(true);
  tell({1}, request);  // one vote is enough
  EXPECT_TRUE(at(0).until_phase(wire::WORKER_STOPPED));
  EXPECT_TRUE(at(1).until_phase(wire::WORKER_STOPPED));
  EXPECT_EQ(at(0).standing().step(), at(1).standing().step());
}

// A newcomer that was told to abort what it never joined: it span, and flooded its agent with news.
TEST_F(EngineTest, WhoIsInNoGenerationStopsThoughItIsFenced) {
  make(1, 1000000);
  abort({0}, 5);
  wire::WorkerCommand request;
  request.mutable_request()->set_stop(true);
  tell({0}, request);
  EXPECT_TRUE(at(0).until_phase(wire::WORKER_STOPPED));
  tell({0}, form(5, wire::FORM_START, {0}));  // and it can begin after all
  EXPECT_TRUE(at(0).until([](const wire::WorkerStanding& s) { return s.step() > 3; }));
}

TEST_F(EngineTest, AFormSaysWhereTrainingStops) {
  const std::string expected = reference(30);
  make(2, 1000000);
  wire::WorkerCommand start = form(1, wire::FORM_START, {0, 1});
  start.mutable_form()->set_stop_steps(30);
  tell({0, 1}, start);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(at(i).until_phase(wire::WORKER_FINISHED));
  EXPECT_EQ(at(0).lines("weights=").at(0), expected);
}

TEST_F(EngineTest, APlannedFormMovesTheEndForAllAtOneCommit) {
  make(2, 1000000);
  tell({0, 1}, form(1, wire::FORM_START, {0, 1}));
  EXPECT_TRUE(at(0).until([](const wire::WorkerStanding& s) { return s.step() > 3; }));
  wire::WorkerCommand earlier = form(2, wire::FORM_PLANNED, {0, 1});
  earlier.mutable_form()->set_stop_steps(2);  // past already: it ends where it is taken up
  tell({0, 1}, earlier);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(at(i).until_phase(wire::WORKER_FINISHED));
  EXPECT_EQ(at(0).standing().step(), at(1).standing().step());
}

TEST_F(EngineTest, AScriptEndsTheJobForAllAndNoFormGoesOn) {
  const std::string expected = reference(7);
  FakeTroubles ends;
  ends.ends_at = 7;
  make(3, 20, ends);
  tell({0, 1, 2}, form(1, wire::FORM_START, {0, 1, 2}));
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(at(i).until_phase(wire::WORKER_FINISHED));
    EXPECT_EQ(at(i).standing().step(), 7u);
    EXPECT_EQ(at(i).standing().last().outcome(), wire::OUTCOME_ENDED);
  }
  EXPECT_EQ(at(0).lines("weights=").at(0), expected);
  EXPECT_EQ(at(1).lines("generation=1").size(), 7u);
  abort({1, 2}, 2);  // rank 0 is lost before its checkpoint is heard of
  wire::WorkerCommand again = form(2, wire::FORM_RECOVER, {1, 2});
  again.mutable_form()->set_base_seq(at(1).standing().seq());
  again.mutable_form()->set_stop_steps(20);
  tell({1, 2}, again);
  EXPECT_TRUE(at(1).until([](const wire::WorkerStanding& s) {
    return s.generation() == 2 && s.phase() == wire::WORKER_FINISHED;
  }));
  EXPECT_EQ(at(1).lines("weights=").at(0), expected);
}

TEST_F(EngineTest, AFormEndsARequestToStop) {
  const std::string expected = reference(400);
  const auto gate = std::make_shared<Gate>();
  make(2, 400, slowed_by(gate));
  tell({0, 1}, form(1, wire::FORM_START, {0, 1}));
  EXPECT_TRUE(at(0).until([](const wire::WorkerStanding& s) { return s.step() > 3; }));
  wire::WorkerCommand request;
  request.mutable_request()->set_stop(true);
  request.mutable_request()->set_checkpoint(true);
  tell({0, 1}, request);
  EXPECT_TRUE(at(0).until_phase(wire::WORKER_STOPPED));
  EXPECT_TRUE(at(1).until_phase(wire::WORKER_STOPPED));
  gate->open();
  abort({0, 1}, 2);
  wire::WorkerCommand again = form(2, wire::FORM_RECOVER, {0, 1});
  again.mutable_form()->set_base_seq(at(0).standing().seq());
  tell({0, 1}, again);
  EXPECT_TRUE(at(0).until_phase(wire::WORKER_FINISHED));  // not stopped once more
  EXPECT_EQ(at(0).lines("weights=").at(0), expected);
}

}  // namespace
}  // namespace rubato::worker
