// JobMachine: what agents say is bounded before it is used, whatever it is.
#include "tests/unit/coordinator/fake_pods.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace rubato::coordinator {
namespace {

constexpr std::uint64_t kHuge = std::numeric_limits<std::uint64_t>::max();

TEST(JobMachineBounds, NumbersThatAreNoneDoNotReachTheView) {
  FakePods pods(2);
  pods.start_training();
  wire::WorkerStanding& s = pods.standing(1);
  s.set_seq(s.seq() + 1);  // so that it is the one that is furthest
  s.set_loss(std::nan(""));
  s.set_step_seconds(std::numeric_limits<double>::infinity());
  s.set_tokens(kHuge);
  s.set_validation_step(kHuge);
  s.set_validation_loss(-std::numeric_limits<double>::infinity());
  pods.say(1);
  EXPECT_TRUE(std::isfinite(pods.view().loss));
  EXPECT_TRUE(std::isfinite(pods.view().validation_loss));
  EXPECT_EQ(pods.view().step_seconds, 0);
  EXPECT_LE(pods.view().tokens, 1ull << 53);  // which JSON and int64 hold
  EXPECT_LE(pods.view().validation_step, 1ull << 53);
}

TEST(JobMachineBounds, AnAgentSpeaksForItsOwnWorkersAlone) {
  FakePods pods(2);
  pods.start_training();
  wire::AgentMessage message;
  for (const auto& [pod, slot] : {std::pair("uid-0", 0u), std::pair("uid-1", 4'000'000'000u)}) {
    wire::WorkerStanding& standing = *message.mutable_heartbeat()->add_workers();
    standing.mutable_id()->set_pod_uid(pod);
    standing.mutable_id()->set_slot(slot);
    standing.mutable_id()->set_incarnation(9);
    standing.set_phase(wire::WORKER_STARTING);
  }
  pods.machine.message(pods.now, "uid-1", message);
  pods.beat();
  EXPECT_EQ(pods.view().phase, Phase::kTraining);
  EXPECT_EQ(pods.view().members.size(), 2u);
  EXPECT_EQ(pods.view().generation, 1u);
}

TEST(JobMachineBounds, TextsAreCutBetweenLetters) {
  FakePods pods(3, {}, 2);
  pods.start_first(2);
  pods.commit_all();
  pods.connect(2);
  std::string message = "x";
  for (int i = 0; i < 100'000; ++i) message += "é";
  pods.say(2, [&](wire::WorkerEvent& event) {
    event.mutable_failure()->set_reason("DataNotFound");
    event.mutable_failure()->set_message(message);
    event.mutable_failure()->set_permanent(true);
    event.mutable_failure()->set_scope(wire::FAILURE_SCOPE_WORKER);
  });
  ASSERT_EQ(pods.view().refused.size(), 1u);
  const std::string& shown = pods.view().refused[0].message;
  EXPECT_LT(shown.size(), 1100u);
  EXPECT_TRUE(shown.ends_with("é …")) << shown.substr(shown.size() - 8);
}

TEST(JobMachineBounds, AgentsOfPodsThatAreGoneAreForgotten) {
  FakePods pods(3);
  pods.start_training();
  pods.disconnect(2);
  pods.change_wish([](Wish& wish) { wish.pods.pop_back(); });
  pods.settle();
  pods.connect(2);  // it is not wanted, and is not taken down
  EXPECT_EQ(pods.view().heard_pods.size(), 2u);
}

}  // namespace
}  // namespace rubato::coordinator
