#include "tests/unit/coordinator/fake_pods.h"

#include <gtest/gtest.h>

namespace rubato::coordinator {
namespace {

constexpr auto kConfigure = wire::WorkerCommand::kConfigure;
constexpr auto kAbort = wire::WorkerCommand::kAbort;
constexpr auto kForm = wire::WorkerCommand::kForm;
constexpr auto kFollow = wire::WorkerCommand::kFollow;
constexpr auto kRequest = wire::WorkerCommand::kRequest;
constexpr auto kRetire = wire::WorkerCommand::kRetire;

// ---- Start
// ---------------------------------------------------------------------------------------

TEST(JobMachineStart, ConfiguresAndWaitsForEnoughReadyWorkers) {
  FakePods pods(3);
  pods.connect_all();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(pods.count(i, kConfigure), 1u);
  pods.make_ready(0);
  pods.make_ready(1);
  pods.after(2s);
  EXPECT_FALSE(pods.to_write.has_value());
  EXPECT_EQ(pods.view().phase, Phase::kWaiting);
  pods.make_ready(2);
  ASSERT_TRUE(pods.to_write.has_value());
  EXPECT_EQ(pods.to_write->members.size(), 3u);
  EXPECT_EQ(pods.last(0, kForm), nullptr);  // the durable decision first
  pods.swap_done();
  ASSERT_NE(pods.last(0, kForm), nullptr);
  EXPECT_EQ(pods.last(0, kForm)->form().mode(), wire::FORM_START);
  EXPECT_FALSE(pods.last(0, kForm)->form().from_checkpoint());
  pods.settle();
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  EXPECT_EQ(pods.machine.record().phase, "Training");
  EXPECT_EQ(pods.machine.record().fingerprint, "f00d");
}

TEST(JobMachineStart, StartsWithFewerThanAllAfterASettle) {
  FakePods pods(3, {}, 2);
  pods.connect_all();
  pods.make_ready(0);
  pods.make_ready(1);
  EXPECT_FALSE(pods.to_write.has_value());
  pods.after(kJoinSettle + 50ms);
  ASSERT_TRUE(pods.to_write.has_value());
  EXPECT_EQ(pods.to_write->members.size(), 2u);
}

TEST(JobMachineStart, TakesTheNewestCheckpointAndLeavesOutWhoCannotReadIt) {
  FakePods pods(3);
  pods.connect_all();
  for (int i = 0; i < 3; ++i) {
    pods.standing(i).set_has_checkpoint(true);
    pods.standing(i).set_checkpoint_step(i == 1 ? 50 : 100);
    pods.make_ready(i);
  }
  pods.settle();
  const auto& form = pods.last(0, kForm)->form();
  EXPECT_TRUE(form.from_checkpoint());
  EXPECT_EQ(form.checkpoint_step(), 100u);
  EXPECT_EQ(form.members_size(), 2);
  pods.after(50ms);
  EXPECT_NE(pods.last(1, kFollow), nullptr);  // it joins by following one who can
}

TEST(JobMachineStart, RefusesAnotherFingerprintAndNamesBothCpus) {
  FakePods pods(3, {}, 2);
  pods.connect_all();
  pods.make_ready(0);
  pods.make_ready(1);
  pods.standing(2).set_phase(wire::WORKER_READY);
  pods.standing(2).set_fingerprint("other");
  pods.standing(2).set_cpu("Xeon");
  pods.say(2);
  pods.after(1s);
  pods.settle();
  EXPECT_EQ(pods.machine.record().members.size(), 2u);
  ASSERT_EQ(pods.view().failures.size(), 1u);
  EXPECT_EQ(pods.view().failures[0].reason, "FingerprintMismatch");
  EXPECT_NE(pods.view().failures[0].message.find("Xeon"), std::string::npos);
  EXPECT_NE(pods.view().failures[0].message.find("EPYC"), std::string::npos);
  EXPECT_EQ(pods.last(2, kFollow), nullptr);
}

// ---- Recovery
// --------------------------------------------------------------------------------------

TEST(JobMachineRecovery, AbortAndWriteGoOutTogetherAndTheFormWaitsForBoth) {
  FakePods pods(3);
  pods.start_training();
  pods.clear();
  const std::uint64_t before = pods.machine.record().generation;
  pods.exit(2, -1, 11);
  ASSERT_NE(pods.last(0, kAbort), nullptr);
  EXPECT_EQ(pods.last(0, kAbort)->abort().below(), before + 1);
  ASSERT_TRUE(pods.to_write.has_value());
  EXPECT_EQ(pods.to_write->members.size(), 2u);
  pods.swap_done();
  EXPECT_EQ(pods.last(0, kForm), nullptr);
  pods.obey_aborts();
  ASSERT_NE(pods.last(0, kForm), nullptr);
  EXPECT_EQ(pods.last(0, kForm)->form().mode(), wire::FORM_RECOVER);
  EXPECT_EQ(pods.last(0, kForm)->form().base_seq(), 1u);
  pods.settle();
  pods.commit_all();
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  ASSERT_FALSE(pods.view().changes.empty());
  EXPECT_EQ(pods.view().changes.back().kind, "recover");
  EXPECT_EQ(pods.view().failure_count, 1u);
}

TEST(JobMachineRecovery, AConnectionMayComeBackWithinTheGrace) {
  FakePods pods(3);
  pods.start_training();
  pods.clear();
  pods.disconnect(1);
  pods.after(200ms);
  EXPECT_EQ(pods.last(0, kAbort), nullptr);
  pods.connect(1);
  pods.after(1s);
  EXPECT_EQ(pods.last(0, kAbort), nullptr);
  pods.disconnect(1);
  pods.after(300ms);
  EXPECT_NE(pods.last(0, kAbort), nullptr);
}

TEST(JobMachineRecovery, AClosedConnectionAndABrokenLinkTogetherAreDeath) {
  FakePods pods(3);
  pods.start_training();
  pods.clear();
  pods.disconnect(1);
  EXPECT_EQ(pods.last(0, kAbort), nullptr);
  pods.say(0, [&](wire::WorkerEvent& event) {
    event.mutable_suspect()->set_generation(pods.machine.record().generation);
    event.mutable_suspect()->mutable_peer()->set_pod_uid("uid-1");
  });
  EXPECT_NE(pods.last(0, kAbort), nullptr);
}

TEST(JobMachineRecovery, SilenceIsDeath) {
  FakePods pods(3);
  pods.start_training();
  pods.clear();
  pods.connected[1] = false;  // frozen: no word, no end
  pods.after(2400ms);
  EXPECT_EQ(pods.last(0, kAbort), nullptr);
  pods.after(200ms);
  ASSERT_NE(pods.last(0, kAbort), nullptr);
  EXPECT_TRUE(pods.view().failures.back().infrastructure);
}

TEST(JobMachineRecovery, WhoDoesNotAnswerAnAbortIsLeftOut) {
  FakePods pods(4);
  pods.start_training();
  pods.clear();
  pods.exit(3, -1, 9);
  pods.swap_done();
  const std::uint64_t first = pods.machine.record().generation;
  for (const int i : {0, 1}) {
    pods.standing(i).set_fenced_below(first);
    pods.standing(i).set_phase(wire::WORKER_ABORTED);
    pods.say(i);
  }
  pods.after(1900ms);
  EXPECT_FALSE(pods.was_restarted(2));
  pods.after(200ms);
  EXPECT_TRUE(pods.was_restarted(2));
  ASSERT_TRUE(pods.to_write.has_value());
  EXPECT_GT(pods.to_write->generation, first);
  EXPECT_EQ(pods.to_write->members.size(), 2u);
}

TEST(JobMachineRecovery, BelowTheMinimumStateIsHeldUntilOthersCome) {
  FakePods pods(3);
  pods.change_wish([](Wish& wish) { wish.min_workers = 3; });
  pods.start_training();
  pods.clear();
  pods.exit(2, -1, 9);
  pods.settle();
  EXPECT_TRUE(pods.last(0, kForm)->form().parked());
  EXPECT_EQ(pods.view().phase, Phase::kParked);
  EXPECT_TRUE(pods.view().parked_since.has_value());
  // The worker comes back, follows, and all go on.
  pods.standing(2).mutable_id()->set_incarnation(2);
  pods.standing(2).set_phase(wire::WORKER_STARTING);
  pods.standing(2).set_generation(0);
  pods.standing(2).set_has_state(false);
  pods.standing(2).set_fenced_below(0);
  pods.clear();
  pods.say(2);
  pods.make_ready(2);
  ASSERT_NE(pods.last(2, kFollow), nullptr);
  pods.standing(2).set_phase(wire::WORKER_FOLLOWING);
  pods.standing(2).set_has_state(true);
  pods.standing(2).set_seq(pods.standing(0).seq());
  pods.say(2, [](wire::WorkerEvent& event) { event.mutable_caught_up(); });
  pods.settle();
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  EXPECT_EQ(pods.view().members.size(), 3u);
}

TEST(JobMachineRecovery, AWriteThatMeetsAnotherStopsEverything) {
  FakePods pods(3);
  pods.start_training();
  pods.clear();
  pods.exit(2, -1, 9);
  pods.swap_conflict();
  EXPECT_TRUE(pods.machine.must_reload());
  pods.obey_aborts();
  EXPECT_EQ(pods.last(0, kForm), nullptr);
}

TEST(JobMachineRecovery, NewsOfAReplacedIncarnationChangeNothing) {
  FakePods pods(3);
  pods.start_training();
  const wire::WorkerStanding old = pods.standing(2);
  pods.exit(2, -1, 9);
  pods.standing(2).mutable_id()->set_incarnation(2);
  pods.standing(2).set_phase(wire::WORKER_STARTING);
  pods.standing(2).set_generation(0);
  pods.say(2);
  const wire::WorkerStanding fresh = pods.standing(2);
  pods.standing(2) = old;
  pods.say(2);
  pods.standing(2) = fresh;
  pods.settle();
  EXPECT_EQ(pods.machine.record().members.size(), 2u);
}

// ---- Planned changes
// -------------------------------------------------------------------------------

void join(FakePods& pods, int pod) {
  pods.make_ready(pod);
  ASSERT_NE(pods.last(pod, kFollow), nullptr);
  pods.standing(pod).set_phase(wire::WORKER_FOLLOWING);
  pods.standing(pod).set_has_state(true);
  pods.standing(pod).set_seq(pods.standing(0).seq());
  pods.say(pod, [](wire::WorkerEvent& event) { event.mutable_caught_up(); });
}

TEST(JobMachineChange, ANewcomerFollowsAndAllSwitch) {
  FakePods pods(3, {}, 2);
  pods.connect(0);
  pods.connect(1);
  pods.make_ready(0);
  pods.make_ready(1);
  pods.after(400ms);
  pods.settle();
  pods.commit_all();
  pods.connect(2);
  join(pods, 2);
  ASSERT_TRUE(pods.to_write.has_value());
  EXPECT_EQ(pods.to_write->phase, "Switching");
  EXPECT_EQ(pods.to_write->members.size(), 3u);
  EXPECT_EQ(pods.to_write->previous.size(), 2u);
  pods.swap_done();
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(pods.last(i, kForm)->form().mode(), wire::FORM_PLANNED) << i;
  EXPECT_EQ(pods.view().phase, Phase::kSwitching);
  pods.settle();
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  EXPECT_TRUE(pods.machine.record().previous.empty());
}

TEST(JobMachineChange, ANewcomerThatDiesBeforeTheSwitchIsLeftBehind) {
  FakePods pods(3, {}, 2);
  pods.connect(0);
  pods.connect(1);
  pods.make_ready(0);
  pods.make_ready(1);
  pods.after(400ms);
  pods.settle();
  pods.connect(2);
  join(pods, 2);
  pods.swap_done();
  pods.clear();
  pods.exit(2, -1, 9);
  EXPECT_NE(pods.last(0, kAbort), nullptr);
  pods.settle();
  EXPECT_EQ(pods.machine.record().members.size(), 2u);
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
}

TEST(JobMachineChange, ALeaverIsRetiredAfterTheSwitch) {
  FakePods pods(3);
  pods.start_training();
  pods.clear();
  pods.change_wish([](Wish& wish) { wish.pods[0].leaving = true; });
  ASSERT_TRUE(pods.to_write.has_value());
  EXPECT_EQ(pods.to_write->members.size(), 2u);
  EXPECT_EQ(pods.last(0, kRetire), nullptr);
  pods.settle();
  EXPECT_EQ(pods.count(0, kRetire), 1u);
  pods.exit(0, 0, 0);
  EXPECT_EQ(pods.view().retired_pods, std::vector<std::string>{"gpt-0"});
  EXPECT_EQ(pods.view().failure_count, 0u);
}

TEST(JobMachineChange, APlannedChangeThatTakesTooLongIsGivenUp) {
  FakePods pods(3);
  pods.start_training();
  pods.clear();
  pods.change_wish([](Wish& wish) { wish.pods[2].leaving = true; });
  pods.swap_done();
  pods.after(9s);
  EXPECT_EQ(pods.last(0, kAbort), nullptr);
  pods.after(3s);
  EXPECT_NE(pods.last(0, kAbort), nullptr);
}

// ---- A new leader
// ------------------------------------------------------------------------------------

Record record_of(FakePods& pods) {
  Record record = pods.machine.record();
  ++record.leader;
  return record;
}

TEST(JobMachineLeader, FindsTheJobTrainingAndDisturbsNobody) {
  FakePods before(3);
  before.start_training();
  FakePods pods(3, record_of(before));
  pods.standings = before.standings;
  pods.connect(0);
  pods.after(1s);
  pods.connect(1);
  pods.connect(2);
  pods.after(3s);
  pods.settle();
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(pods.last(i, kAbort), nullptr);
}

TEST(JobMachineLeader, CallsNobodyDeadBeforeAFullSilence) {
  FakePods before(3);
  before.start_training();
  FakePods pods(3, record_of(before));
  pods.standings = before.standings;
  pods.connect(0);
  pods.connect(1);
  pods.after(2400ms);
  EXPECT_EQ(pods.last(0, kAbort), nullptr);
  pods.after(200ms);
  EXPECT_NE(pods.last(0, kAbort), nullptr);
}

TEST(JobMachineLeader, RepairsWhatTheOldOneLeftHalfDone) {
  FakePods before(3);
  before.start_training();
  before.exit(2, -1, 9);
  before.swap_done();
  before.obey_aborts();  // and there the old one died: no Form was obeyed
  FakePods pods(2, record_of(before));
  pods.standings = {before.standings[0], before.standings[1]};
  pods.connect_all();
  pods.settle();
  pods.commit_all();
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  EXPECT_GT(pods.machine.record().generation, before.machine.record().generation);
}

TEST(JobMachineLeader, AFinishedJobStaysFinished) {
  Record record;
  record.generation = 4;
  record.phase = "Finished";
  FakePods pods(1, record);
  pods.connect(0);
  pods.make_ready(0);
  pods.after(kRetireDeadline + 1s);
  EXPECT_EQ(pods.view().phase, Phase::kFinished);
  EXPECT_EQ(pods.last(0, kForm), nullptr);
}

// ---- Ends
// ----------------------------------------------------------------------------------------------

TEST(JobMachineEnds, FinishRetiresAllAndIsWritten) {
  FakePods pods(2);
  pods.start_training();
  for (int i = 0; i < 2; ++i) {
    pods.standing(i).set_phase(wire::WORKER_FINISHED);
    pods.say(i);
  }
  pods.settle();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(pods.count(i, kRetire), 1u);
    pods.exit(i, 0, 0);
  }
  EXPECT_EQ(pods.view().phase, Phase::kFinished);
  EXPECT_EQ(pods.machine.record().phase, "Finished");
}

TEST(JobMachineEnds, FinishWaitsForTheLastCheckpoint) {
  FakePods pods(2);
  pods.wish.training = R"({"checkpoint":{"path":"/ckpt"}})";
  pods.machine = JobMachine(Timing{}, pods.wish, {}, pods.now);
  pods.start_training();
  for (int i = 0; i < 2; ++i) {
    pods.standing(i).set_phase(wire::WORKER_FINISHED);
    pods.say(i);
  }
  pods.after(5s);
  EXPECT_EQ(pods.last(0, kRetire), nullptr);
  pods.standing(0).set_has_checkpoint(true);
  pods.standing(0).set_checkpoint_step(pods.standing(0).step());
  pods.say(0);
  EXPECT_NE(pods.last(0, kRetire), nullptr);
}

TEST(JobMachineEnds, StopAsksForACheckpointAndRetiresWhoHasStopped) {
  FakePods pods(2);
  pods.start_training();
  pods.change_wish([](Wish& wish) {
    wish.stop = true;
    wish.stop_reason = "suspended";
  });
  EXPECT_EQ(pods.view().phase, Phase::kStopping);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(pods.count(i, kRequest), 1u);
    EXPECT_TRUE(pods.last(i, kRequest)->request().checkpoint());
    pods.standing(i).set_phase(wire::WORKER_STOPPED);
    pods.say(i);
  }
  pods.settle();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(pods.count(i, kRetire), 1u);
    pods.exit(i, 0, 0);
  }
  EXPECT_EQ(pods.view().phase, Phase::kStopped);
}

TEST(JobMachineEnds, StopBeforeTheStart) {
  FakePods pods(2);
  pods.connect(0);
  pods.change_wish([](Wish& wish) { wish.stop = true; });
  EXPECT_NE(pods.last(0, kRetire), nullptr);
  pods.exit(0, 0, 0);
  EXPECT_EQ(pods.view().phase, Phase::kStopped);
}

TEST(JobMachineEnds, APermanentFailureFailsTheJob) {
  FakePods pods(2);
  pods.start_training();
  pods.say(1, [](wire::WorkerEvent& event) {
    event.mutable_failure()->set_reason("NonFinite");
    event.mutable_failure()->set_message("wte at step 7");
    event.mutable_failure()->set_permanent(true);
  });
  pods.settle();
  EXPECT_EQ(pods.view().phase, Phase::kFailed);
  EXPECT_EQ(pods.view().failure_reason, "NonFinite");
  EXPECT_NE(pods.last(0, kRetire), nullptr);
}

TEST(JobMachineStuck, TheWorkerThatOthersWaitForIsRestarted) {
  FakePods pods(3);
  pods.start_training();
  for (int i = 0; i < 3; ++i) pods.standing(i).set_phase_name(i == 1 ? "compute" : "reduce");
  pods.after(19s);
  EXPECT_FALSE(pods.was_restarted(1));
  pods.after(2s);
  EXPECT_TRUE(pods.was_restarted(1));
  EXPECT_FALSE(pods.was_restarted(0));
  EXPECT_FALSE(pods.was_restarted(2));
}

}  // namespace
}  // namespace rubato::coordinator
