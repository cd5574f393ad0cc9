// JobMachine: what agents say is bounded before it is used, whatever it is.
#include "apiserver/memory/memory_client.h"
#include "common/log.h"
#include "operator/coordinator/job_task.h"
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
  s.set_noise_scale(std::nan(""));
  s.set_validation_step(kHuge);
  s.set_validation_loss(-std::numeric_limits<double>::infinity());
  pods.say(1);
  EXPECT_TRUE(std::isfinite(pods.view().loss));
  EXPECT_TRUE(std::isfinite(pods.view().validation_loss));
  EXPECT_EQ(pods.view().step_seconds, 0);
  EXPECT_EQ(pods.view().noise_scale, 0);
  EXPECT_LE(pods.view().tokens, 1ull << 53);  // which JSON and int64 hold
  EXPECT_LE(pods.view().validation_step, 1ull << 53);
}

TEST(JobMachineBounds, AnAgentSpeaksForItsOwnWorkersAlone) {
  FakePods pods(2);
  pods.start_training();
  wire::AgentMessage message;
  for (const auto& [pod, slot] :
       {std::pair("uid-0", 0u), std::pair("uid-1", 1u), std::pair("uid-1", 4'000'000'000u)}) {
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
  EXPECT_EQ(pods.view().ready_pods.size(), 2u) << "its pod has one slot";
}

// Said again, or less than before, it is no more than it was.
TEST(JobMachineBounds, WhatOneProcessHasSkippedIsCountedOnce) {
  FakePods pods(2);
  pods.start_training();
  for (const std::uint64_t skipped : {std::uint64_t{3}, kHuge, kHuge, std::uint64_t{0}, kHuge}) {
    pods.standing(1).set_checkpoints_skipped(skipped);
    pods.say(1);
  }
  EXPECT_LE(pods.checkpoints_skipped, 1'000'000u);
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

class NoChannel : public net::Channel {
 public:
  Status send(std::string, MonoTime) override { return ok(); }
  Result<std::string> receive(MonoTime) override { return Error(Code::kTimeout, "nobody speaks"); }
  void on_news(std::function<void()>) override {}
  void close() override {}
  bool closed() const override { return false; }
  net::Endpoint peer() const override { return {}; }
  std::string peer_name() const override { return ""; }
};

// Of a job whose record cannot be read yet nothing is taken down: what its agents say waits, up to
// so many messages and up to so many bytes, and then they are not read.
TEST(JobTaskBounds, WhatIsNotTakenDownIsBoundedByNumberAndBytes) {
  configure_log({.level = LogLevel::kError, .json = false});
  ThreadExecutor executor;
  kube::MemoryServer server(executor.clock());  // the job is not there
  kube::MemoryClient client(server, executor, nullptr);
  Wish wish;
  wish.job = {"default", "gpt"};
  wish.uid = "job-uid";
  wish.pods.push_back({"gpt-0", "uid-0", "n0", "H100", 1, false});
  const auto heartbeat = [] {
    wire::AgentMessage message;
    message.mutable_heartbeat();
    return message;
  };
  const auto taken = [&](std::size_t bytes) {
    const JobTask::World world{[] { return MonoTime{}; }, [] { return MonoTime{}; },
                               [] { return MonoTime{}; }};
    JobTask task(executor, client, {}, wish, 0, 1, world, {});
    EXPECT_TRUE(task.start().ok());
    wire::Hello hello;
    hello.set_pod_uid("uid-0");
    task.attach(1, std::make_shared<NoChannel>(), hello, 0, executor.now());
    std::size_t count = 0;
    while (task.has_room() && count < 10 * kInputsMax) {
      EXPECT_TRUE(task.deliver(1, "uid-0", heartbeat(), bytes, executor.now()));
      ++count;
    }
    return count;
  };
  EXPECT_LE(taken(10), kInputsMax);
  EXPECT_EQ(taken(1 << 20), kInputBytesMax >> 20);
  // Nor do those who come again and again without end, each time with all they know.
  const JobTask::World world{[] { return MonoTime{}; }, [] { return MonoTime{}; },
                             [] { return MonoTime{}; }};
  JobTask task(executor, client, {}, wish, 0, 1, world, {});
  ASSERT_TRUE(task.start().ok());
  wire::Hello hello;
  hello.set_pod_uid("uid-0");
  for (std::uint64_t session = 1; session <= 3 * kInputsMax + 1; ++session) {
    task.attach(session, std::make_shared<NoChannel>(), hello, 1000, executor.now());
    task.detach(session, "uid-0", "it hung up", executor.now());
  }
  EXPECT_TRUE(task.has_room());
  // What hellos take counts, of each pod's the last.
  task.attach(4 * kInputsMax, std::make_shared<NoChannel>(), hello, kInputBytesMax, executor.now());
  EXPECT_FALSE(task.has_room());
  task.attach(5 * kInputsMax, std::make_shared<NoChannel>(), hello, 1000, executor.now());
  EXPECT_TRUE(task.has_room());
}

}  // namespace
}  // namespace rubato::coordinator
