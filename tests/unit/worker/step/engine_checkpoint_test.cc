// The engine and its checkpoints, on disks that are slow, full, broken or rotten.
#include "tests/unit/worker/step/sim_worker.h"

namespace rubato::worker {
namespace {

class EngineCheckpointTest : public ::testing::Test {
 protected:
  EngineCheckpointTest() { SimStorage::write_tokens(*keeper_); }
  std::unique_ptr<SimWorker> worker(const SimJob& job = {}) {
    return std::make_unique<SimWorker>(sim_, storage_, job);
  }
  // What a run without trouble ends with.
  std::string weights_of(const SimJob& job) {
    SimStorage storage(sim_);
    testing::SimProcess& process = sim_.process("reference");
    SimStorage::write_tokens(*storage.open(process));
    SimWorker alone(sim_, storage, job);
    alone.start();
    EXPECT_TRUE(alone.until_phase(wire::WORKER_FINISHED));
    return alone.lines("weights=").at(0);
  }
  // A run of four steps whose checkpoints stand.
  void train_four() {
    const auto first = worker({.steps = 4});
    first->start();
    ASSERT_TRUE(first->until_phase(wire::WORKER_FINISHED));
  }
  CheckpointFolder folder() { return {*keeper_, "/ckpt"}; }
  static void deny_checkpoints(SimWorker& worker) {
    worker.files().on_stat = [](const std::string& path) -> Status {
      if (!path.starts_with("/ckpt/")) return ok();
      return Error(Code::kDenied, path + ": Permission denied");
    };
  }
  // After kDeniedLimit, for good here.
  void expect_denial_is_said(SimWorker& worker) {
    const auto is_said = [&] {
      return worker.last_failure().scope() == wire::FAILURE_SCOPE_WORKER;
    };
    EXPECT_FALSE(sim_.run_until(is_said, kDeniedLimit - 5s));
    ASSERT_TRUE(sim_.run_until(is_said, 10s));
    const wire::Failure told = worker.last_failure();
    EXPECT_EQ(told.reason(), "CheckpointFailed");
    EXPECT_NE(told.message().find("Permission denied"), std::string::npos) << told.message();
  }
  // The job is to know after so long; and yet the disk may answer.
  static void expect_silence_is_said(SimWorker& worker) {
    EXPECT_FALSE(worker.until_failure("CheckpointFailed", kDeniedLimit - 5s));
    ASSERT_TRUE(worker.until_failure("CheckpointFailed", 10s));
    const wire::Failure told = worker.last_failure();
    EXPECT_EQ(told.scope(), wire::FAILURE_SCOPE_ATTEMPT);
    for (const char* word : {"/ckpt", "Input/output error"})
      EXPECT_NE(told.message().find(word), std::string::npos) << told.message();
  }
  void flip(const std::string& file) {
    ASSERT_TRUE(
        storage_.checkpoints.flip_bit(file, keeper_->stat("/ckpt" + file)->size - 20, 2).ok());
  }

  testing::SimExecutor sim_{1};
  SimStorage storage_{sim_};
  std::unique_ptr<testing::SimDisk> keeper_ = storage_.open(sim_.process("keeper"));
};

// With a disk that takes ten seconds for each operation steps go on as they do without one;
// checkpoints that are due meanwhile are skipped and counted.
TEST_F(EngineCheckpointTest, ASlowDiskCostsNoStep) {
  const SimJob job{.steps = 40};
  const auto slow = worker(job);
  storage_.checkpoints.faults().delay = 10s;
  slow->start();
  ASSERT_TRUE(sim_.run_until([&] { return slow->standing().step() == job.steps; }, 5min));
  EXPECT_LE(slow->longest_step(), 2 * kSimStep + 10ms);  // two micro-batches
  // Alone, it waits for nobody.
  EXPECT_GT(slow->standing().compute_seconds(), 0);
  EXPECT_NEAR(slow->standing().compute_seconds(), slow->standing().step_seconds(), 0.01);
  EXPECT_EQ(slow->failure("CheckpointFailed"), nullptr);
  const auto skipped = slow->lines("checkpoint skipped");
  ASSERT_FALSE(skipped.empty());
  EXPECT_NE(skipped.back().find("skipped=" + std::to_string(skipped.size())), std::string::npos);
  ASSERT_TRUE(slow->until_phase(wire::WORKER_FINISHED, 2h)) << sim_.dump();
  EXPECT_LE(slow->longest_silence(), 2s) << "it shows life while it waits for the disk";
  EXPECT_EQ(folder().steps().value().back(), 40);
  EXPECT_EQ(slow->lines("weights=").at(0), weights_of(job));
  EXPECT_EQ(read_step_records(*keeper_, "/ckpt/steps.bin")->size(), 40u);
}

// Who asked for it waits for it: no other one is due.
TEST_F(EngineCheckpointTest, OneThatWasAskedForIsNotForgottenWhereItIsSkipped) {
  const auto slow = worker({.steps = 100'000, .checkpoint_every = 0});
  slow->start();
  storage_.checkpoints.faults().delay = 1s;
  slow->ask_to_save();
  ASSERT_TRUE(sim_.run_until([&] { return slow->standing().step() >= 3; }, 1min));
  slow->ask_to_save();  // while that one is being written
  ASSERT_TRUE(sim_.run_until([&] { return !slow->lines("checkpoint skipped").empty(); }, 1min));
  const std::uint64_t asked_at = slow->standing().step();
  storage_.checkpoints.faults().delay = 0s;
  EXPECT_TRUE(
      sim_.run_until([&] { return slow->standing().checkpoint_step() >= asked_at; }, 10min));
  EXPECT_EQ(slow->lines("checkpoint skipped").size(), 1u);
}

// The disk is full when training ends, and has room again five minutes later.
TEST_F(EngineCheckpointTest, TheLastCheckpointIsTriedAgainWhileStateIsHeld) {
  const auto full = worker({.steps = 4, .checkpoint_every = 0});
  storage_.checkpoints.faults().capacity = 3000;
  full->start();
  ASSERT_TRUE(full->until_failure("CheckpointFailed"));
  EXPECT_FALSE(full->failure("CheckpointFailed")->permanent());
  EXPECT_FALSE(full->until_phase(wire::WORKER_FINISHED, 5min));
  EXPECT_TRUE(full->standing().has_state());
  EXPECT_EQ(full->standing().phase(), wire::WORKER_TRAINING);
  EXPECT_LE(full->longest_silence(), 2s);
  storage_.checkpoints.faults().capacity = 1u << 20;
  ASSERT_TRUE(full->until_phase(wire::WORKER_FINISHED, 1min));
  EXPECT_TRUE(folder().verify(4).ok());
}

TEST_F(EngineCheckpointTest, ItGivesUpWhenItWasToldTo) {
  const auto full = worker({.steps = 4, .checkpoint_every = 0, .give_up_after = 300});
  full->start();
  ASSERT_TRUE(sim_.run_until([&] { return full->standing().step() == 3; }, 1min));
  storage_.checkpoints.faults().broken = true;
  const MonoTime begun = sim_.now();
  ASSERT_TRUE(full->until_failure("CheckpointFailed"));
  const auto gave_up = [&] { return full->last_failure().permanent(); };
  ASSERT_TRUE(sim_.run_until(gave_up, 10min));
  EXPECT_GE(sim_.now() - begun, 300s);
  EXPECT_LE(sim_.now() - begun, 310s);
  EXPECT_EQ(full->last_failure().reason(), "CheckpointFailed");
  EXPECT_NE(full->standing().phase(), wire::WORKER_FINISHED);
}

// So does the checkpoint before a stop.
TEST_F(EngineCheckpointTest, AStopWaitsForItsCheckpoint) {
  const auto full = worker({.steps = 1000, .checkpoint_every = 0});
  full->start();
  ASSERT_TRUE(sim_.run_until([&] { return full->standing().step() >= 3; }, 1min));
  storage_.checkpoints.faults().broken = true;
  full->ask_to_stop();
  EXPECT_FALSE(full->until_phase(wire::WORKER_STOPPED, 3min));
  storage_.checkpoints.faults().broken = false;
  ASSERT_TRUE(full->until_phase(wire::WORKER_STOPPED, 1min));
  EXPECT_EQ(folder().steps().value().back(), static_cast<std::int64_t>(full->standing().step()));
}

// What is on disk is looked at when it is asked for, not once.
TEST_F(EngineCheckpointTest, ALookSeesWhatIsThereNow) {
  const auto early = worker();
  EXPECT_EQ(early->standing().looked(), kLooksByItself);
  EXPECT_FALSE(early->standing().has_checkpoint());
  train_four();
  EXPECT_FALSE(early->standing().has_checkpoint()) << "it has not looked";
  early->look(77);
  ASSERT_TRUE(sim_.run_until([&] { return early->standing().looked() == 77; }, 1s));
  EXPECT_EQ(early->standing().checkpoint_step(), 4u);
  EXPECT_EQ(early->standing().checkpoint_digest(), folder().summary(4)->state_digest);
}

// "None" would begin the job anew: a disk that does not answer gives no answer.
TEST_F(EngineCheckpointTest, ABrokenDiskIsNotAnEmptyOne) {
  train_four();
  const auto second = worker({.steps = 4});
  storage_.checkpoints.faults().broken = true;
  second->look(5);
  EXPECT_FALSE(sim_.run_until([&] { return second->standing().looked() == 5; }, 1min));
  EXPECT_EQ(second->standing().phase_name(), "look") << "it does not hang";
  storage_.checkpoints.faults().broken = false;
  ASSERT_TRUE(sim_.run_until([&] { return second->standing().looked() == 5; }, 10s));
  EXPECT_EQ(second->standing().checkpoint_step(), 4u);
  EXPECT_TRUE(sim_.run_until([&] { return second->standing().phase_name() == "idle"; }, 10s));
}

// Its newest checkpoint says under which arithmetic a job goes on: who is configured waits for it,
// and is not refused.
TEST_F(EngineCheckpointTest, WhoIsConfiguredWaitsForTheDisk) {
  train_four();
  storage_.checkpoints.faults().broken = true;
  const auto second = worker({.steps = 4});
  EXPECT_FALSE(second->until_phase(wire::WORKER_READY, 1min));
  EXPECT_EQ(second->standing().phase_name(), "configure");
  EXPECT_EQ(second->failure("BadTraining"), nullptr);
  EXPECT_LE(second->longest_silence(), 2s) << "it does not hang";
  storage_.checkpoints.faults().broken = false;
  ASSERT_TRUE(second->until_phase(wire::WORKER_READY, 10s));
  EXPECT_EQ(second->standing().checkpoint_step(), 4u);
}

// The others may have begun without it: what they compute it need not read.
TEST_F(EngineCheckpointTest, WhoWaitsForTheDiskGoesOnWhenOthersSayWhatItWouldSay) {
  const auto first = worker({.steps = 4});
  const std::string known = first->standing().fingerprint();
  storage_.checkpoints.faults().broken = true;
  const auto second = worker({.steps = 4});
  EXPECT_FALSE(second->until_phase(wire::WORKER_READY, 1min));
  second->configure({.steps = 4, .pinned = known});
  ASSERT_TRUE(second->until_phase(wire::WORKER_READY, 10s));
  EXPECT_EQ(second->standing().fingerprint(), known);
  EXPECT_FALSE(second->standing().has_checkpoint());
}

// A disk that does not answer is asked on, and is told of. No time helps where permissions are
// missing; another node may have them.
TEST_F(EngineCheckpointTest, WhoMayNotReadCheckpointsSaysSo) {
  train_four();
  storage_.checkpoints.faults().broken = true;
  const auto second = worker({.steps = 4});
  expect_silence_is_said(*second);
  deny_checkpoints(*second);
  storage_.checkpoints.faults().broken = false;
  expect_denial_is_said(*second);
  EXPECT_EQ(second->standing().phase(), wire::WORKER_STARTING);
}

// A job that has run before is known without its checkpoints: who may not read them finds that out
// when it is to look.
TEST_F(EngineCheckpointTest, WhoMayNotReadCheckpointsSaysSoWhenItLooks) {
  train_four();
  const std::string known = worker({.steps = 4})->standing().fingerprint();
  const auto second = worker({.steps = 4, .pinned = known});
  ASSERT_EQ(second->standing().phase(), wire::WORKER_READY);
  storage_.checkpoints.faults().broken = true;
  second->look(5);
  expect_silence_is_said(*second);
  deny_checkpoints(*second);
  storage_.checkpoints.faults().broken = false;
  expect_denial_is_said(*second);
  EXPECT_NE(second->standing().looked(), 5u);
  second->files().on_stat = [](const std::string&) { return ok(); };
  second->look(6);
  EXPECT_TRUE(sim_.run_until([&] { return second->standing().looked() == 6; }, 10s));
}

TEST_F(EngineCheckpointTest, ADamagedOneIsNamedAndSetAsideAndAnOlderOneTried) {
  train_four();
  for (const char* file : {"/step-00000004/optimizer.safetensors", "/step-00000002/run.json"})
    flip(file);
  const auto second = worker();
  EXPECT_EQ(second->standing().checkpoint_step(), 4u) << "run.json of the newest is whole";
  second->start(4);
  ASSERT_TRUE(second->until_failure(kCheckpointDamaged));
  EXPECT_FALSE(second->failure(kCheckpointDamaged)->permanent());
  ASSERT_EQ(second->damaged().size(), 1u);
  EXPECT_EQ(second->damaged()[0].step(), 4u);
  EXPECT_EQ(second->damaged()[0].path(), "/ckpt/.damaged-step-00000004-1");
  EXPECT_NE(second->damaged()[0].why().find("optimizer.safetensors"), std::string::npos);
  EXPECT_EQ(second->standing().phase(), wire::WORKER_READY);
  second->look(9);  // finds that the one before is damaged, too
  ASSERT_TRUE(sim_.run_until([&] { return second->standing().looked() == 9; }, 1s));
  EXPECT_FALSE(second->standing().has_checkpoint());
  EXPECT_EQ(second->damaged().size(), 2u);

  // None is left, and there were some: the seed is not begun from behind people's backs.
  second->start();
  ASSERT_TRUE(second->until_failure("CheckpointUnusable"));
  EXPECT_TRUE(second->failure("CheckpointUnusable")->permanent());
  EXPECT_NE(second->failure("CheckpointUnusable")->message().find("prune --damaged /ckpt`"),
            std::string::npos);
}

TEST_F(EngineCheckpointTest, AnOlderOneLeadsToTheSameEnd) {
  train_four();
  flip("/step-00000004/model.safetensors");
  const auto second = worker();
  second->start(4);
  ASSERT_TRUE(second->until_failure(kCheckpointDamaged));
  second->look(9);
  ASSERT_TRUE(sim_.run_until([&] { return second->standing().looked() == 9; }, 1s));
  ASSERT_EQ(second->standing().checkpoint_step(), 2u);
  second->start(2);
  ASSERT_TRUE(second->until_phase(wire::WORKER_FINISHED));
  EXPECT_EQ(second->lines("weights=").at(0), weights_of({}));
  EXPECT_EQ(keeper_->list("/ckpt").value().front(), ".damaged-step-00000004-1");
}

// A start from the seed beside a checkpoint that nobody had seen is refused; the next look sees it.
TEST_F(EngineCheckpointTest, TheSeedIsNotBegunFromBesideACheckpoint) {
  const auto early = worker();
  train_four();
  early->start();
  ASSERT_TRUE(early->until_failure("StartFailed"));
  EXPECT_FALSE(early->failure("StartFailed")->permanent());
  EXPECT_EQ(early->standing().step(), 0u);
}

TEST_F(EngineCheckpointTest, AnotherJobsPathIsRefusedAtOnce) {
  train_four();
  const auto other = worker({.uid = "uid-b"});
  const wire::Failure* refused = other->failure(kCheckpointPathTaken);
  ASSERT_NE(refused, nullptr);
  EXPECT_NE(refused->message().find("uid-a"), std::string::npos);
  EXPECT_EQ(other->standing().phase(), wire::WORKER_STARTING);
  const auto sweep = worker({.learning_rate = 0.01});
  refused = sweep->failure(kCheckpointPathTaken);
  ASSERT_NE(refused, nullptr);
  EXPECT_NE(refused->message().find("optimizer.learningRate is 0.003"), std::string::npos)
      << refused->message();
}

// Two jobs began on an empty path; who is second to save is told, and overwrites nothing.
TEST_F(EngineCheckpointTest, TwoJobsOnAnEmptyPath) {
  const auto second = worker({.uid = "uid-b", .steps = 3, .checkpoint_every = 0});
  train_four();
  const auto before = folder().summary(4)->state_digest;
  second->start();  // nobody had seen them
  ASSERT_TRUE(second->until_failure("StartFailed"));
  EXPECT_EQ(folder().summary(4)->state_digest, before);
}

// Records of another lineage are kept aside, and the run's own stand in their place.
TEST_F(EngineCheckpointTest, AnotherLineagesRecordsAreKeptAside) {
  std::vector<StepRecord> other;
  for (int i = 0; i < 8; ++i) other.push_back(make_step_record(i, 9.0, 1, 1.0));
  ASSERT_TRUE(StepExport(*keeper_, "/ckpt/steps.bin").write(other).ok());
  const auto run = worker();
  run->start();
  ASSERT_TRUE(run->until_phase(wire::WORKER_FINISHED));
  EXPECT_EQ(read_step_records(*keeper_, "/ckpt/steps.bin.diverged-1").value(), other);
  const auto own = read_step_records(*keeper_, "/ckpt/steps.bin").value();
  EXPECT_EQ(own, read_step_records(*keeper_, "/ckpt/step-00000008/steps.bin").value());
}

// Whatever waits for it first: the fingerprint, a start, a step, the copy for a checkpoint.
TEST_F(EngineCheckpointTest, ADeviceThatIsLostAtAnyWaitEndsTheProcessAndNothingElse) {
  int refused = 0, ended = 0;
  for (int waits = 0;; waits += 7) {
    SCOPED_TRACE(waits);
    SimStorage storage(sim_);
    SimStorage::write_tokens(*storage.open(sim_.process("tokens")));
    SimWorker worker(sim_, storage, {.device = "deferred:" + std::to_string(waits)});
    if (worker.standing().phase() == wire::WORKER_STARTING) {  // not started again, but refused
      EXPECT_EQ(worker.last_failure().reason(), kDeviceLost);
      EXPECT_EQ(worker.last_failure().scope(), wire::FAILURE_SCOPE_WORKER);
      ++refused;
      continue;
    }
    worker.start();
    ASSERT_TRUE(sim_.run_until(
        [&] {
          return worker.status().has_value() || worker.standing().phase() == wire::WORKER_FINISHED;
        },
        1min));
    if (!worker.status().has_value()) break;
    EXPECT_EQ(*worker.status(), kStuckStatus);
    const wire::Failure* told = worker.failure(kDeviceLost);
    ASSERT_NE(told, nullptr);
    EXPECT_EQ(told->scope(), wire::FAILURE_SCOPE_ATTEMPT);
    ++ended;
  }
  EXPECT_GT(refused, 1);
  EXPECT_GT(ended, 10);
}

}  // namespace
}  // namespace rubato::worker
