#include "tests/unit/tools/rubatoctl/job_world.h"
#include "tools/rubatoctl/objects.h"

#include <set>

#include <gtest/gtest.h>

namespace rubato::ctl {
namespace {

TEST(ConditionNamed, TakesKubectlsSpellings) {
  for (const char* text : {"Complete", "complete", "condition=Complete", "condition=complete",
                           "condition=COMPLETE=true", "Complete=True"})
    EXPECT_EQ(condition_named(text).value_or("none"), "Complete") << text;
  for (const char* text : {"", "Done", "condition=", "condition", "complete=false", "delete"}) {
    const auto named = condition_named(text);
    ASSERT_FALSE(named.ok()) << text;
    EXPECT_NE(named.error().what().find("it has Queued, Allocated, Running"), std::string::npos);
  }
}

TEST(JobNamed, ByItsNameOrWithItsKind) {
  for (const char* text : {"a", "tj/a", "TrainingJob/a", "trainingjobs.rubato.dev/a", "job/a"})
    EXPECT_EQ(job_named(text).value_or("none"), "a") << text;
  for (const char* text : {"pod/a", "/a", "gizmo/a", "tj/"})
    EXPECT_EQ(job_named(text).error().what(),
              std::string("\"") + text + "\" is no TrainingJob: name one, as NAME or as tj/NAME");
}

TEST(Advised, SaysWhatToDoOnce) {
  const Error missing(Code::kNotFound, "POST /api: namespaces \"team-y\" not found");
  const std::string said = advised(missing).what();
  EXPECT_NE(said.find("`kubectl create namespace team-y`"), std::string::npos) << said;
  EXPECT_EQ(said.find("POST"), std::string::npos) << said;
  EXPECT_EQ(advised(advised(missing)).what(), said);
  const Error object(Code::kNotFound, "pods \"a\" not found");
  EXPECT_NE(advised(object).what().find("`rubatoctl get`"), std::string::npos);
}

struct WaitUntilGone : ::testing::Test {
  Status wait(kube::Client& client, const std::string& uid) {
    return wait_until_gone(client, world.home, {kube::types::kConfigMap, {"default", "a"}, uid},
                           world.home.now() + 10s, "look at it");
  }
  kube::SimWorld world{1};
};

TEST_F(WaitUntilGone, IsNotFoundOrAnotherOfTheName) {
  const std::string uid = kube::uid_of(world.make_config_map("a", 1));
  const Status still = wait(world.client, uid);
  ASSERT_FALSE(still.ok());
  EXPECT_EQ(still.error().code(), Code::kTimeout);
  EXPECT_EQ(still.error().what(), "configmap/a is still there\n  What to do: look at it");
  world.sim.at(world.sim.now() + 2s, [&] { world.remove_config_map("a"); });
  EXPECT_TRUE(wait(world.client, uid).ok());
  world.make_config_map("a", 2);
  EXPECT_TRUE(wait(world.client, uid).ok());
  EXPECT_FALSE(wait(world.client, "").ok());
}

TEST_F(WaitUntilGone, AServerThatIsAwaySaysNothing) {
  const std::string uid = kube::uid_of(world.make_config_map("a", 1));
  world.faults.rate = 1;
  EXPECT_FALSE(wait(world.client, uid).ok());
  world.sim.at(world.sim.now() + 2s, [&] {
    world.remove_config_map("a");
    world.faults.rate = 0;
  });
  EXPECT_TRUE(wait(world.client, uid).ok());
}

struct Denies : kube::FaultHook {
  std::optional<Error> before(const kube::Operation&) override {
    ++asked;
    return Error(Code::kDenied, "no");
  }
  std::optional<Error> after(const kube::Operation&) override { return std::nullopt; }
  int asked = 0;
};

TEST_F(WaitUntilGone, ARefusalIsReturnedAtOnce) {
  Denies denies;
  kube::MemoryClient client(world.server, world.home, &denies);
  const Status denied = wait(client, "");
  ASSERT_FALSE(denied.ok());
  EXPECT_EQ(denied.error().code(), Code::kDenied);
  EXPECT_EQ(denies.asked, 1);
}

struct WaitFor : ::testing::Test {
  void become(const std::string& conditions) {
    world.set_status(api::kTrainingJob, "gpt", R"({"conditions":[)" + conditions + "]}");
  }
  static std::string condition(const std::string& type) {
    return R"({"type":")" + type + R"(","status":"True","reason":"R","message":"m",)" +
           R"("lastTransitionTime":"2026-11-21T08:00:00Z"})";
  }
  Status wait(const std::string& wanted) {
    return wait_for(world.client, world.home, {"default", "gpt"}, wanted, 60s);
  }
  JobWorld world;
};

TEST_F(WaitFor, GoesOnWhileTheServerIsAway) {
  world.faults.rate = 1;
  world.sim.at(world.sim.now() + 2s, [&] {
    world.faults.rate = 0;
    become(condition("Running"));
  });
  EXPECT_TRUE(wait("Running").ok());
  world.faults.rate = 1;
  const MonoTime begin = world.home.now();
  const std::string last = wait("Running").error().what();
  EXPECT_TRUE(last.starts_with("a fault of the test")) << last;
  EXPECT_GE(world.home.now() - begin, 60s);
}

TEST_F(WaitFor, ARefusalIsReturnedAtOnce) {
  Denies denies;
  kube::MemoryClient client(world.server, world.home, &denies);
  EXPECT_EQ(wait_for(client, world.home, {"default", "gpt"}, "Running", 60s).error().code(),
            Code::kDenied);
  EXPECT_EQ(denies.asked, 1);
}

TEST_F(WaitFor, EndsWithTheJob) {
  become(condition("Complete") + "," + condition("Diverged"));
  const MonoTime begin = world.home.now();
  EXPECT_EQ(wait("Running").error().what(), "the job is Complete: Running will not be met");
  EXPECT_TRUE(wait("Complete").ok());
  EXPECT_TRUE(wait("Diverged").ok()) << "it is True, in whatever order they stand";
  become(condition("Failed") + "," + condition("Diverged"));
  EXPECT_EQ(wait("Complete").error().what(), "the job failed: m");
  EXPECT_TRUE(wait("Failed").ok());
  EXPECT_TRUE(wait("Diverged").ok());
  EXPECT_EQ(world.home.now(), begin);
}

struct Drain : ::testing::Test {
  Drain() { world.make(kube::types::kNode, "", parsed(R"({"metadata":{"name":"n1"}})")); }
  // `metadata`: more members of it.
  void add_pod(const std::string& name, const std::string& phase,
               const std::string& metadata = "") {
    world.make(kube::types::kPod, "default",
               parsed(R"({"metadata":{"name":")" + name + "\"" + metadata +
                      R"(},"spec":{"nodeName":"n1","terminationGracePeriodSeconds":0,)" +
                      R"("containers":[{"name":"worker","image":"x"}]}})"));
    world.set_status(kube::types::kPod, name, R"({"phase":")" + phase + "\"}");
  }
  std::set<std::string> pods() {
    std::set<std::string> names;
    const auto list = world.client.list(kube::types::kPod, "", {});
    for (const json::Value& pod : list.value().items) names.insert(kube::name_of(pod));
    return names;
  }
  JobWorld world;
};

TEST_F(Drain, LeavesWhatComesAgainOrHasEnded) {
  const std::string owner = kube::uid_of(world.make_config_map("owner", 1));  // it has to be there
  const auto owned_by = [&](const std::string& kind) {
    return R"(,"ownerReferences":[{"apiVersion":"apps/v1","kind":")" + kind +
           R"(","name":"owner","uid":")" + owner + R"(","controller":true}])";
  };
  add_pod("worker", "Running");
  add_pod("replica", "Pending", owned_by("ReplicaSet"));
  add_pod("network", "Running", owned_by("DaemonSet"));
  add_pod("static", "Running", R"(,"annotations":{"kubernetes.io/config.mirror":"x"})");
  add_pod("done", "Succeeded");
  add_pod("broken", "Failed");
  ASSERT_TRUE(drain(world.client, world.home, "n1", 60s).ok());
  EXPECT_EQ(pods(), (std::set<std::string>{"broken", "done", "network", "static"}));
  EXPECT_TRUE(world.client.get(kube::types::kNode, {"", "n1"}, "")
                  .value()["spec"]["unschedulable"]
                  .bool_or(false));
}

// The first evictions end so; then they happen.
struct RefusesEvictions : kube::FaultHook {
  std::optional<Error> before(const kube::Operation& operation) override {
    if (operation.subresource != "eviction" || refused == codes.size()) return std::nullopt;
    return Error(codes[refused++], "no");
  }
  std::optional<Error> after(const kube::Operation&) override { return std::nullopt; }
  std::vector<Code> codes;
  std::size_t refused = 0;
};

TEST_F(Drain, WaitsForABudgetAndForAServerThatIsAway) {
  RefusesEvictions refuses;
  kube::MemoryClient client(world.server, world.home, &refuses);
  refuses.codes = {Code::kExhausted, Code::kUnavailable, Code::kTimeout};
  add_pod("worker", "Running");
  EXPECT_TRUE(drain(client, world.home, "n1", 60s).ok());
  EXPECT_EQ(pods(), std::set<std::string>{});
  add_pod("worker", "Running");
  refuses.codes.push_back(Code::kInternal);  // two budgets for one pod
  EXPECT_EQ(drain(client, world.home, "n1", 60s).error().code(), Code::kInternal);
}

}  // namespace
}  // namespace rubato::ctl
