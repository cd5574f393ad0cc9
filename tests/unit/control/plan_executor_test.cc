#include "operator/control/plan_executor.h"

#include "apiserver/memory/memory_client.h"
#include "apiserver/memory/memory_server.h"
#include "common/executor.h"
#include "fixtures.h"
#include "operator/api/codec.h"
#include "operator/api/crd.h"
#include "operator/api/resources.h"

namespace rubato::control {
namespace {

const kube::Key kJobKey{"default", "gpt"};

class PlanExecutor : public ::testing::Test {
 protected:
  PlanExecutor() : server_(executor_.clock()), client_(server_, executor_, nullptr) {
    for (const api::Kind& kind : api::kinds())
      EXPECT_TRUE(server_.create(kube::types::kCustomResourceDefinition, "", api::crd(kind)).ok());
    make_job();
  }
  void make_job() {
    const auto made =
        server_.create(api::kTrainingJob, "default",
                       parse(R"({"apiVersion":"rubato.dev/v1alpha1","kind":"TrainingJob",
      "metadata":{"name":"gpt","namespace":"default"},"spec":{"runtime":"command",
      "gpus":{"min":1,"max":2},"template":{"spec":{"containers":[{"name":"w","image":"i"}]}}}})"));
    EXPECT_TRUE(made.ok());
    write_status(R"({"state":"Queued"})");  // the job controller's, which comes first
  }
  void write_status(const std::string& status) {
    const auto written =
        client_.patch(api::kTrainingJob, kJobKey, kube::PatchType::kMerge,
                      parse(R"({"status":)" + status + "}"), {.subresource = "status"});
    EXPECT_TRUE(written.ok()) << written.error().to_string();
  }
  api::TrainingJob read() {
    return *api::decode_training_job(server_.get(api::kTrainingJob, kJobKey).value());
  }
  void take_over(int leader) {
    write_status(
        R"({"membership":{"generation":1,"phase":"Waiting","members":[],"seq":0,"step":0,"leader":)" +
        std::to_string(leader) + "}}");
  }
  Status write(const api::TrainingJob& seen, int leader, const std::string& node) {
    sched::Action action;
    action.add.push_back({.node = node, .gpu_type = "A", .gpus = 1, .cell = "rack"});
    const auto written =
        write_allocation(client_, seen, allocation_after(seen, action, leader, WallTime{}));
    return written.ok() ? ok() : Status(written.error());
  }

  ThreadExecutor executor_;
  kube::MemoryServer server_;
  kube::MemoryClient client_;
};

TEST_F(PlanExecutor, TheFirstDecisionWins) {
  const api::TrainingJob seen = read();
  EXPECT_TRUE(write(seen, 1, "n1").ok());
  EXPECT_EQ(write(seen, 1, "n2").error().code(), Code::kConflict);
  const api::TrainingJob now = read();
  EXPECT_EQ(now.status.allocation->pods.at(0).cell, "rack");
  EXPECT_EQ(now.status.allocation->epoch, 1);
  EXPECT_TRUE(write(now, 1, "n2").ok());
  EXPECT_EQ(write(now, 1, "n3").error().code(), Code::kConflict);
  EXPECT_EQ(read().status.allocation->pods.size(), 2u);
}

// The store was restored from a backup: a pod that it does not know had the next name already.
TEST_F(PlanExecutor, OrdinalsGoOnAboveWhatIsNamed) {
  const api::TrainingJob seen = read();
  sched::Action action;
  action.add.push_back({.node = "n1", .gpu_type = "A", .gpus = 1});
  const api::Allocation next = allocation_after(seen, action, 1, WallTime{}, 7);
  EXPECT_EQ(next.pods.back().ordinal, 8);
  EXPECT_EQ(next.next_ordinal, 9);
  EXPECT_EQ(allocation_after(seen, action, 1, WallTime{}).pods.back().ordinal, 0);
  EXPECT_EQ(api::ordinal_of("gpt", "gpt-w12"), 12);
  for (const char* other : {"gpt-w", "gpt-w1x", "gpt2-w1", "gpt", "gpt-w9999999999999"})
    EXPECT_FALSE(api::ordinal_of("gpt", other)) << other;
}

// What minRunSeconds count from.
TEST_F(PlanExecutor, WhenAJobStartedIsNotedUntilItHasNothingLeft) {
  api::TrainingJob seen = read();
  sched::Action gives, takes;
  gives.add.push_back({.node = "n1", .gpu_type = "A", .gpus = 1});
  takes.remove = {0, 1};
  const auto since = [&] { return seen.status.allocation->running_since; };
  seen.status.allocation = allocation_after(seen, gives, 1, WallTime{10s});
  seen.status.allocation = allocation_after(seen, gives, 1, WallTime{20s});
  EXPECT_EQ(since(), WallTime{10s}) << "it has grown";
  seen.status.allocation = renewed(seen, 1, WallTime{30s});
  EXPECT_EQ(since(), WallTime{10s});
  EXPECT_EQ(released(seen, "", 1, WallTime{30s}).running_since, std::nullopt);
  seen.status.allocation = allocation_after(seen, takes, 1, WallTime{30s});
  EXPECT_EQ(since(), std::nullopt);
  seen.status.allocation = allocation_after(seen, gives, 1, WallTime{40s});
  EXPECT_EQ(since(), WallTime{40s});
  seen.status.allocation->running_since.reset();
  seen.status.allocation = allocation_after(seen, gives, 1, WallTime{50s});
  EXPECT_EQ(since(), WallTime{40s}) << "an earlier release began it, which did not say so";
}

TEST_F(PlanExecutor, ALeaderThatWasReplacedIsShutOut) {
  ASSERT_TRUE(write(read(), 1, "n1").ok());
  take_over(1);
  const api::TrainingJob seen = read();  // what the old leader decides on
  take_over(2);
  EXPECT_EQ(write(seen, 1, "n2").error().code(), Code::kConflict);
  EXPECT_EQ(write(read(), 1, "n2").error().code(), Code::kConflict) << "it knows of the new one";
  EXPECT_TRUE(write(read(), 2, "n2").ok());
}

// A write whose answer was lost may arrive late: the next epoch, with the same pods, stops it.
TEST_F(PlanExecutor, TheSamePodsUnderTheNextEpochShutOutWhatIsUnderWay) {
  ASSERT_TRUE(write(read(), 1, "n1").ok());
  const api::TrainingJob seen = read();
  const api::Allocation same = renewed(seen, 1, WallTime{});
  EXPECT_EQ(same.epoch, 2);
  EXPECT_EQ(same.pods, seen.status.allocation->pods);
  ASSERT_TRUE(write_allocation(client_, seen, same).ok());
  EXPECT_EQ(write(seen, 1, "n2").error().code(), Code::kConflict);
  EXPECT_EQ(read().status.allocation->pods.size(), 1u);
}

// Its epochs begin anew, so what was decided of the one before would fit.
TEST_F(PlanExecutor, AnotherJobUnderTheNameIsLeftAlone) {
  ASSERT_TRUE(write(read(), 1, "n1").ok());
  const api::TrainingJob seen = read();
  ASSERT_TRUE(server_.remove(api::kTrainingJob, kJobKey).ok());
  make_job();
  ASSERT_TRUE(write(read(), 1, "n3").ok());
  EXPECT_EQ(read().status.allocation->epoch, seen.status.allocation->epoch);
  EXPECT_EQ(write(seen, 1, "n2").error().code(), Code::kConflict);
  EXPECT_EQ(read().status.allocation->pods.size(), 1u);
}

}  // namespace
}  // namespace rubato::control
