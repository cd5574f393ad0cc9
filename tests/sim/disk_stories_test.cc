// Stories of disks of checkpoints, told with care: no worker can write the last one, or not for a
// while, or none can be read.
#include "operator/api/resources.h"
#include "tests/sim/whole_cluster.h"

#include <algorithm>
#include <optional>

#include <gtest/gtest.h>

namespace rubato::sim {
namespace {

constexpr Duration kGiveUp = 30min;  // training.checkpoint.giveUpAfter
constexpr Duration kFirst = 2min;    // to train all steps, and more

class LastCheckpoint : public ::testing::Test {
 protected:
  // Three workers, of which two are needed, have committed the last step; the disk that all share
  // fails since, for so long.
  void train_and_break(Duration spell, std::optional<int> deadline_seconds = {}) {
    Scenario scenario;
    scenario.nodes = {{"n0", "fast", 1}, {"n1", "fast", 1}, {"n2", "fast", 1}};
    scenario.queues = {{"default", 0}};
    JobPlan job;
    job.shape.name = "last";
    job.shape.steps = 60;
    job.shape.checkpoint_every = 1000;
    job.min = 2;
    job.max = 3;
    job.deadline_seconds = deadline_seconds;
    scenario.jobs = {job};
    cluster_.emplace(scenario, RunOptions{.listening = true});
    cluster_->start();
    ASSERT_TRUE(cluster_->run_until([&] { return step() > 0 && members() == 3; }, kFirst));
    cluster_->inject({FaultKind::kDiskBroken, 0s, spell, 0, 0});
    ASSERT_TRUE(cluster_->run_until([&] { return step() == 60; }, kFirst));
  }
  const json::Value& status() const {
    return cluster_->witness().jobs().at("default/last").object["status"];
  }
  std::int64_t step() const {
    if (!cluster_->witness().jobs().contains("default/last")) return 0;
    return status()["progress"]["step"].int_or(0);
  }
  std::size_t members() const {
    return cluster_->witness().jobs().at("default/last").members.size();
  }
  json::Value condition(std::string_view type) const {
    for (const auto& each : status()["conditions"].items())
      if (each["type"].string_or("") == type && each["status"].string_or("") == "True") return each;
    return {};
  }
  bool until(const char* type, Duration limit) {
    return cluster_->run_until([&] { return condition(type).is_object(); }, limit);
  }

  std::optional<WholeCluster> cluster_;
};

// Each that holds the state tries for as long as it was told; the minimum of workers keeps nobody
// from it. Then the job ends, and says why.
TEST_F(LastCheckpoint, IsTriedByAllAndThenTheJobFailsWithTheReason) {
  train_and_break(24h);
  EXPECT_FALSE(until("Failed", 2 * kGiveUp));
  EXPECT_EQ(condition("Degraded")["reason"].string_or(""), "CheckpointFailed");
  ASSERT_TRUE(until("Failed", kGiveUp + kFirst));
  EXPECT_EQ(condition("Failed")["reason"].string_or(""), "CheckpointFailed");
  const std::string message = condition("Failed")["message"].string_or("");
  EXPECT_NE(message.find("the final checkpoint is not written"), std::string::npos) << message;
  EXPECT_NE(message.find("Input/output error"), std::string::npos) << message;
}

// Its own deadline comes first: then nobody tries any more, and no pod is left.
TEST_F(LastCheckpoint, IsTriedUntilTheDeadlineOfTheJob) {
  train_and_break(24h, 300);  // since the first step; kFirst of it may be over
  ASSERT_TRUE(until("Degraded", kFirst));
  EXPECT_EQ(condition("Degraded")["reason"].string_or(""), "CheckpointFailed");
  EXPECT_FALSE(until("Failed", 300s - 2 * kFirst));
  ASSERT_TRUE(until("Failed", 2 * kFirst));
  EXPECT_EQ(condition("Failed")["reason"].string_or(""), "DeadlineExceeded");
  const auto has_no_pods = [&] {
    return std::ranges::all_of(cluster_->witness().pods(),
                               [](const auto& pod) { return pod.second.finished; });
  };
  EXPECT_TRUE(cluster_->run_until(has_no_pods, kFirst));
}

// The first one has given up when the disk works again: another writes it.
TEST_F(LastCheckpoint, IsWrittenByAnotherWhenTheFirstHasGivenUp) {
  train_and_break(kGiveUp + 10min);
  EXPECT_FALSE(until("Complete", kGiveUp + 9min));
  ASSERT_TRUE(until("Complete", kFirst));
  EXPECT_EQ(status()["progress"]["checkpointStep"].int_or(0), 60);
  EXPECT_FALSE(condition("Failed").is_object());
}

// All state is lost, and the disk does not say what there is to begin from: the job says where, and
// what the disk says, until it answers.
TEST_F(LastCheckpoint, ThatCannotBeReadIsSaidWhileTheJobWaits) {
  constexpr Duration kSpell = 8min;
  train_and_break(kSpell);
  ASSERT_TRUE(cluster_
                  ->server()  // it keeps its GPUs meanwhile
                  .create(api::kSchedulingPolicy, "",
                          *json::parse(R"({"apiVersion":"rubato.dev/v1alpha1",)"
                                       R"("kind":"SchedulingPolicy","metadata":{"name":"default"},)"
                                       R"("spec":{"gangStartSeconds":600}})"))
                  .ok());
  for (std::uint64_t pick = 0; pick < 3; ++pick)
    cluster_->inject({FaultKind::kPodCrash, 0s, 0s, pick, 0});
  const auto says = [&](const char* word) {
    return condition("Degraded")["message"].string_or("").find(word) != std::string::npos;
  };
  ASSERT_TRUE(cluster_->run_until([&] { return says("Input/output error"); }, 2 * kFirst));
  for (const char* word : {"waits for the checkpoints", " on node n", "/ckpt"})
    EXPECT_TRUE(says(word)) << condition("Degraded")["message"].string_or("");
  ASSERT_TRUE(until("Complete", kSpell + 2 * kFirst));
}

}  // namespace
}  // namespace rubato::sim
