// Stories of several builds at once: an operator of the next version, and workers of the one
// before.
#include "operator/api/crd.h"
#include "operator/api/kinds.h"
#include "operator/api/resources.h"
#include "operator/control/status_diff.h"
#include "tests/sim/told_stories.h"

#include <functional>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace rubato::sim {
namespace {

constexpr Duration kInstalled = 25s;  // the next version is

Scenario three_train(std::uint64_t seed, std::uint64_t steps) {
  Scenario scenario;
  scenario.seed = seed;
  scenario.nodes = {{"n0", "fast", 1}, {"n1", "fast", 1}, {"n2", "fast", 1}};
  scenario.queues = {{"default", 0}};
  JobPlan job;
  job.shape = {.name = "elastic", .steps = steps, .checkpoint_every = 10};
  job.max = 3;
  scenario.jobs = {job};
  return scenario;
}

// Its operators say things that agents and workers have never heard of, beside what they know.
TEST(UpgradeStories, AllTrainOnUnderTheNextVersionAndBack) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    WholeCluster cluster(three_train(seed, 100'000), {.listening = true});
    cluster.start();
    const auto job = [&] { return cluster.witness().jobs().at(kElastic); };
    const auto all_train = [&] {
      return cluster.witness().jobs().contains(kElastic) && job().members.size() == 3;
    };
    ASSERT_TRUE(cluster.run_until(all_train, kSoon));
    cluster.run_until([] { return false; }, kSoon);
    const SeenJob before = job();
    cluster.inject({FaultKind::kNextVersion, 0s, kInstalled, 0, 0});
    const auto somebody_stops = [&] {
      return !all_train() || job().generation != before.generation;
    };
    EXPECT_FALSE(cluster.run_until(somebody_stops, 2 * kInstalled)) << "seed " << seed;
    EXPECT_GE(job().leader, before.leader + 2) << "both versions have led";
    // Who starts under one version joins those that started under the other.
    cluster.inject({FaultKind::kNextVersion, 0s, 4 * kSoon, 0, 0});
    cluster.run_until([] { return false; }, kSoon);
    cluster.inject({FaultKind::kPodCrash, 0s, 0s, 1, 0});
    EXPECT_TRUE(cluster.run_until([&] { return !all_train(); }, kSoon)) << "seed " << seed;
    EXPECT_TRUE(cluster.run_until(all_train, 2 * kSoon)) << "seed " << seed;
  }
}

TEST(UpgradeStories, WorkersOfTwoBuildsTrainOneJobToItsEnd) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    Scenario scenario = three_train(seed, 150);
    scenario.old_builds = 0.5;
    scenario.faults = {{FaultKind::kPodCrash, 8s, 0s, 0, 0},
                       {FaultKind::kNodeCut, 14s, 4s, 1, 0},
                       {FaultKind::kPodDeleted, 22s, 0s, 2, 0}};
    const RunResult result = WholeCluster(scenario, {.listening = true}).run();
    EXPECT_TRUE(result.ok) << "seed " << seed << ": " << result.what;
  }
}

// They look at the disk once, when they are configured, and it does not answer then: what they say
// of it ("none") is wrong, and they begin anew to look again.
TEST(UpgradeStories, WorkersOfTheBuildBeforeThatComeWhileTheDiskIsBrokenFindTheCheckpoint) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    Scenario scenario = three_train(seed, 150);
    scenario.old_builds = 1;
    WholeCluster cluster(scenario, {.listening = true});
    cluster.start();
    const auto status = [&]() -> const json::Value& {
      return cluster.witness().jobs().at(kElastic).object["status"];
    };
    const auto step = [&] {
      return cluster.witness().jobs().contains(kElastic) ? status()["progress"]["step"].int_or(0)
                                                         : 0;
    };
    const auto state = [&] { return status()["state"].string_or(""); };
    ASSERT_TRUE(cluster.run_until([&] { return step() >= 30; }, 3 * kSoon));
    cluster.inject({FaultKind::kSuspend, 0s, kSoon / 2, 0, 0});
    ASSERT_TRUE(cluster.run_until([&] { return state() == "Suspended"; }, kSoon));
    const auto stopped_at = step();
    ASSERT_TRUE(cluster.run_until([&] { return state() == "Starting"; }, kSoon));
    cluster.inject({FaultKind::kDiskBroken, 0s, 3s, 0, 0});
    EXPECT_TRUE(cluster.run_until([&] { return step() > stopped_at; }, 3 * kSoon))
        << "seed " << seed << ": " << state() << " at step " << step();
  }
}

// They look at the checkpoints once, when they are configured. One that is set aside after that,
// because it cannot be loaded, is not tried for ever.
TEST(UpgradeStories, WorkersThatCannotBeAskedToLookFindTheCheckpointBefore) {
  Scenario scenario = three_train(1, 100'000);
  scenario.old_builds = 1;
  WholeCluster cluster(scenario, {.listening = true});
  cluster.start();
  const auto saved = [&] {
    const auto job = cluster.witness().jobs().find(kElastic);
    if (job == cluster.witness().jobs().end()) return std::int64_t{0};
    return job->second.object["status"]["progress"]["checkpointStep"].int_or(0);
  };
  ASSERT_TRUE(cluster.run_until([&] { return saved() >= 30; }, 2min));
  const std::int64_t newest = saved();
  const std::string file = fmt::format("/elastic-1/step-{:08}/optimizer.safetensors", newest);
  ASSERT_TRUE(cluster.volume().flip_bit(file, 600, 3).ok()) << file;
  for (std::uint64_t node : {0, 0, 0}) cluster.inject({FaultKind::kPowerCut, 0s, 3s, node, 0});
  EXPECT_TRUE(cluster.run_until([&] { return saved() > newest; }, 2min));
}

// The CRD of TrainingJob, with another status.
void serve(kube::MemoryServer& server, const std::function<void(json::Value& fields)>& change) {
  json::Value versions = api::crd(*api::find_kind("TrainingJob"))["spec"]["versions"];
  json::Value& schema = versions.mutable_items().at(0).at("schema").at("openAPIV3Schema");
  change(schema.at("properties").at("status").at("properties"));
  const auto served = server.patch(
      kube::types::kCustomResourceDefinition, {"", "trainingjobs.rubato.dev"},
      kube::PatchType::kMerge,
      json::Value::object({{"spec", json::Value::object({{"versions", std::move(versions)}})}}));
  ASSERT_TRUE(served.ok());
}

// What it has no room for is not written for ever, and is written once it has; what only a newer
// operator knows of stays.
TEST(UpgradeStories, AnOperatorWritesWhatItAndTheCrdKnow) {
  Scenario scenario = three_train(1, 100'000);
  scenario.jobs[0].min = scenario.jobs[0].max = 9;  // it waits
  scenario.jobs[0].submit_at = 1s;
  WholeCluster cluster(scenario, {.listening = true});
  cluster.start();
  serve(cluster.server(), [](json::Value& fields) { EXPECT_TRUE(fields.erase("priority")); });
  const auto job = [&]() -> const json::Value& {
    return cluster.witness().jobs().at(kElastic).object;
  };
  const auto is = [&](const std::string& state) {
    return cluster.witness().jobs().contains(kElastic) &&
           job()["status"]["state"].string_view_or("") == state;
  };
  const auto ask = [&](const std::string& what, const kube::WriteOptions& options) {
    ASSERT_TRUE(cluster.server()
                    .patch(api::kTrainingJob, {"default", "elastic"}, kube::PatchType::kMerge,
                           *json::parse(what), options)
                    .ok());
  };
  ASSERT_TRUE(cluster.run_until([&] { return is("Queued"); }, kSoon));
  cluster.run_until([] { return false; }, 2 * kSoon);
  const std::string version = job()["metadata"]["resourceVersion"].string_or("");
  cluster.run_until([] { return false; }, 3min);
  EXPECT_EQ(job()["metadata"]["resourceVersion"].string_view_or(""), version);
  EXPECT_FALSE(job()["status"].has("priority"));

  serve(cluster.server(), [](json::Value& fields) {
    fields.set("fieldOfTomorrow", json::Value::object({{"type", "integer"}}));
  });
  ask(R"({"status":{"fieldOfTomorrow":1}})", {.subresource = "status"});
  const auto has_priority = [&] { return job()["status"].has("priority"); };
  EXPECT_TRUE(cluster.run_until(has_priority, control::kDroppedFor + 1min));
  ask(R"({"spec":{"suspend":true}})", {});
  EXPECT_TRUE(cluster.run_until([&] { return is("Suspended"); }, kSoon));
  EXPECT_EQ(job()["status"]["fieldOfTomorrow"].int_or(0), 1);
}

}  // namespace
}  // namespace rubato::sim
