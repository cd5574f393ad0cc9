#include "tests/unit/kube/sim_fixture.h"
#include "tools/rubatoctl/objects.h"

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

}  // namespace
}  // namespace rubato::ctl
