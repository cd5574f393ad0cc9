// A pod whose container cannot start, for no process is needed to see how its end is told.
#include "tools/localnode/pod_runner.h"

#include "tests/unit/kube/sim_fixture.h"

#include <filesystem>

#include <gtest/gtest.h>

namespace rubato::localnode {
namespace {

using json::Value;

struct PodRunnerTest : ::testing::Test {
  PodRunnerTest() {
    char path[] = "/tmp/rubato-pods-XXXXXX";
    settings.root = mkdtemp(path);
  }
  ~PodRunnerTest() override {
    runners.clear();
    std::filesystem::remove_all(settings.root);
  }

  PodRunner& start(const std::string& name, const Value& environment = Value::array()) {
    const Value container =
        Value::object({{"name", "worker"}, {"image", "x"}, {"env", environment}});  // no command
    auto pod = world.server.create(
        kube::types::kPod, "default",
        Value::object({{"apiVersion", "v1"},
                       {"kind", "Pod"},
                       {"metadata", Value::object({{"name", name}, {"namespace", "default"}})},
                       {"spec", Value::object({{"containers", Value::array({container})}})}}));
    CHECK(pod.ok());
    runners.push_back(std::make_unique<PodRunner>(world.home, world.client, settings, volumes,
                                                  pod.value().object, "127.0.0.1"));
    runners.back()->start();
    return *runners.back();
  }
  auto pod(const std::string& name) {
    return world.server.get(kube::types::kPod, {"default", name});
  }

  kube::SimWorld world{1};
  RunnerSettings settings;
  Volumes volumes{world.client, "/nowhere"};
  std::vector<std::unique_ptr<PodRunner>> runners;
};

TEST_F(PodRunnerTest, HowAPodEndedIsWrittenWhenTheApiServerIsBack) {
  world.faults.rate = 1;
  start("a");
  world.sim.run_for(std::chrono::minutes(30));
  EXPECT_EQ((*pod("a"))["status"]["phase"].string_or(""), "Pending");
  world.faults.rate = 0;
  world.sim.run_for(6s);
  const Value status = (*pod("a"))["status"];
  EXPECT_EQ(status["phase"].string_or(""), "Failed");
  EXPECT_EQ(status["containerStatuses"][0]["state"]["terminated"]["exitCode"].int_or(0), 127);
}

TEST_F(PodRunnerTest, APodThatWasDeletedGoesWhenTheApiServerIsBack) {
  PodRunner& runner = start("a");
  world.sim.run_for(1s);
  world.faults.rate = 1;
  runner.terminate(0s);
  world.sim.run_for(std::chrono::minutes(30));
  EXPECT_TRUE(pod("a").ok());
  world.faults.rate = 0;
  world.sim.run_for(6s);
  EXPECT_FALSE(pod("a").ok());
  EXPECT_TRUE(runner.is_done());
}

// As a kubelet does: what the container is to have in its environment may come yet.
TEST_F(PodRunnerTest, APodWaitsForTheSecretOfItsEnvironment) {
  const auto variable = [](const char* secret, bool optional) {
    const Value ref =
        Value::object({{"name", secret}, {"key", "token"}, {"optional", Value(optional)}});
    return Value::object(
        {{"name", "TOKEN"}, {"valueFrom", Value::object({{"secretKeyRef", ref}})}});
  };
  start("optional", Value::array({variable("none", true)}));
  start("a", Value::array({variable("late", false)}));
  world.sim.run_for(1min);
  EXPECT_EQ((*pod("optional"))["status"]["phase"].string_or(""), "Failed");  // it has no command
  const Value waiting = (*pod("a"))["status"];
  EXPECT_EQ(waiting["phase"].string_or(""), "Pending");
  EXPECT_NE(json::dump(waiting).find("environment variable TOKEN"), std::string::npos);
  const Value secret =
      Value::object({{"apiVersion", "v1"},
                     {"kind", "Secret"},
                     {"metadata", Value::object({{"name", "late"}, {"namespace", "default"}})},
                     {"data", Value::object({{"token", "eA=="}})}});
  ASSERT_TRUE(world.server.create(kube::types::kSecret, "default", secret).ok());
  world.sim.run_for(6s);
  EXPECT_EQ((*pod("a"))["status"]["phase"].string_or(""), "Failed");
}

TEST_F(PodRunnerTest, APodThatIsNotKnownAnyMoreIsGivenUp) {
  world.faults.rate = 1;
  PodRunner& runner = start("a");
  world.sim.run_for(1min);
  EXPECT_FALSE(runner.is_done());
  runner.abandon();
  world.sim.run_for(1s);
  EXPECT_TRUE(runner.is_done());
}

// Its sidecar could not start either, so that the containers are not.
TEST_F(PodRunnerTest, WhatKeptAnInitContainerIsInItsStatus) {
  auto made = world.server.create(kube::types::kPod, "default",
                                  json::parse(R"({"apiVersion": "v1", "kind": "Pod",
          "metadata": {"name": "a", "namespace": "default"},
          "spec": {"initContainers": [{"name": "proxy", "image": "x", "restartPolicy": "Always"}],
                   "containers": [{"name": "worker", "image": "x"}]}})")
                                      .value());
  ASSERT_TRUE(made.ok());
  runners.push_back(std::make_unique<PodRunner>(world.home, world.client, settings, volumes,
                                                made.value().object, "127.0.0.1"));
  runners.back()->start();
  world.sim.run_for(6s);
  const Value status = (*pod("a"))["status"];
  EXPECT_EQ(status["phase"].string_or(""), "Failed");
  EXPECT_EQ(status["reason"].string_or(""), "Init:Error");
  EXPECT_EQ(status["initContainerStatuses"][0]["name"].string_or(""), "proxy");
  EXPECT_EQ(status["initContainerStatuses"][0]["state"]["terminated"]["reason"].string_or(""),
            "StartError");
  EXPECT_EQ(status["containerStatuses"].size(), 0U);
}

TEST(GpusOfPod, SidecarsHaveTheirsBesideTheOthers) {
  const auto count = [](const char* spec) {
    const Value pod = Value::object({{"spec", json::parse(spec).value()}});
    return gpus_of_pod(
        pod, [](const Value& c) { return static_cast<std::size_t>(c["gpus"].int_or(0)); });
  };
  EXPECT_EQ(count(R"({"containers": [{"gpus": 1}, {"gpus": 2}]})"), 3U);
  EXPECT_EQ(count(R"({"initContainers": [{"gpus": 4}, {"gpus": 5}], "containers": [{"gpus": 2}]})"),
            5U);
  EXPECT_EQ(count(R"({"initContainers": [{"gpus": 1, "restartPolicy": "Always"}, {"gpus": 2}],
                      "containers": [{"gpus": 2}, {"gpus": 1}]})"),
            4U);
  EXPECT_EQ(count(R"({"initContainers": [{"gpus": 1, "restartPolicy": "Always"}, {"gpus": 9}],
                      "containers": [{"gpus": 2}]})"),
            10U);
}

}  // namespace
}  // namespace rubato::localnode
