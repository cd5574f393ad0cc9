// JobMachine: starts that fail, and what is shown and said of them.
#include "tests/unit/coordinator/fake_pods.h"

#include <gtest/gtest.h>

namespace rubato::coordinator {
namespace {

void say_attempt_failed(FakePods& pods, int pod, const std::string& reason) {
  pods.say(pod, [&](wire::WorkerEvent& event) {
    event.mutable_failure()->set_reason(reason);
    event.mutable_failure()->set_message("opening /weights: Input/output error");
    event.mutable_failure()->set_scope(wire::FAILURE_SCOPE_ATTEMPT);
  });
}

// It looks where it is asked to, takes up a start, as its standing says while it loads, and fails.
void fail_start(FakePods& pods, int pod) {
  wire::WorkerStanding& s = pods.standing(pod);
  if (const auto* look = pods.last(pod, wire::WorkerCommand::kLook);
      look != nullptr && look->look().number() > s.looked()) {
    s.set_looked(look->look().number());
    pods.say(pod);
  }
  const auto* form = pods.last(pod, kForm);
  if (form == nullptr || form->form().generation() <= s.generation()) return;
  s.set_generation(form->form().generation());
  s.set_phase(wire::WORKER_TRAINING);
  pods.say(pod);
  EXPECT_EQ(pods.view().phase, Phase::kForming) << "it loads";
  s.set_phase(wire::WORKER_READY);
  say_attempt_failed(pods, pod, "StartFailed");
}

// A disk that does not answer, say: no start stands, and none is shown as training.
TEST(JobMachineStarts, AStartThatFailsIsNotShownAsTrainingAndItsCauseIsSaid) {
  FakePods pods(1);
  pods.change_wish([](Wish& wish) { wish.min_workers = 1; });
  pods.connect_all();
  pods.standing(0).set_looked(1);
  pods.make_ready(0);
  const std::string why =
      "StartFailed of pod gpt-0 on node n0: opening /weights: Input/output error";
  const MonoTime end = pods.now + 40min;
  while (pods.now < end && pods.view().end == Phase::kWaiting) {
    pods.obey_aborts();
    fail_start(pods, 0);
    if (pods.to_write) pods.swap_done();
    ASSERT_NE(pods.view().phase, Phase::kTraining) << pods.view().reason;
    if (pods.view().generation > 1 && pods.view().end == Phase::kWaiting) {
      EXPECT_EQ(pods.view().reason, "starts anew: " + why);
    }
    pods.now += 50ms;
    pods.beat();
  }
  EXPECT_EQ(pods.view().end, Phase::kFailed);
  EXPECT_EQ(pods.view().failure_reason, "StartFailed");
  EXPECT_EQ(pods.view().failure_message,
            "no step was committed in 64 starts, the last one because " + why);
  EXPECT_EQ(pods.view().gpu_seconds.useful, 0);
}

// The last attempt is no end while a stop is asked: it has one of its own, and as a job whose
// checkpoint stands it goes on later.
TEST(JobMachineStarts, AttemptsDoNotFailAJobThatIsToStop) {
  FakePods pods(2);
  pods.start_training();
  pods.change_wish([](Wish& wish) {
    wish.stop = true;
    wish.grace = 100min;
  });
  std::uint64_t failed = 0;
  const auto turn = [&] {
    const std::uint64_t generation = pods.machine.record().generation;
    if (generation > std::exchange(failed, generation))
      for (int pod = 0; pod < 2; ++pod) say_attempt_failed(pods, pod, "FormFailed");
    pods.now += 200ms;
    pods.beat();
    pods.settle();
    pods.clear();
  };
  const MonoTime begun = pods.now;
  while (pods.now < begun + 48min) turn();
  EXPECT_GT(failed, static_cast<std::uint64_t>(kAttemptsMax));
  EXPECT_EQ(pods.view().end, Phase::kWaiting) << pods.view().failure_message;
  while (pods.now < begun + 101min) turn();
  EXPECT_EQ(pods.view().end, Phase::kStopped);
  EXPECT_EQ(pods.view().failure_reason, "");
}

}  // namespace
}  // namespace rubato::coordinator
