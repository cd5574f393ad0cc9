#include "kube/fenced_client.h"

#include "sim_fixture.h"

#include <gtest/gtest.h>

namespace rubato::kube {
namespace {

TEST(FencedClient, WritesOnlyWhileTheLeaseOutlivesThem) {
  SimWorld world(1);
  const json::Value map = world.make_config_map("m", 1);
  const Key key{"default", "m"};
  MonoTime valid_until = world.home.now() + 10s;
  FencedClient leader(world.client, world.home, [&] { return valid_until; }, 3s);
  const json::Value patch = json::Value::object({{"data", json::Value::object({{"value", "2"}})}});
  bool finished = false;
  Task task = world.home.spawn("test", [&](std::stop_token) {
    EXPECT_TRUE(leader.patch(types::kConfigMap, key, PatchType::kMerge, patch, {}).ok());
    world.home.sleep_for(8s);  // 2 s are left
    EXPECT_TRUE(leader.get(types::kConfigMap, key, "").ok());
    EXPECT_TRUE(leader.list(types::kConfigMap, "default", {}).ok());
    const auto late = leader.patch(types::kConfigMap, key, PatchType::kMerge, patch, {});
    EXPECT_EQ(late.error().code(), Code::kUnavailable);
    EXPECT_EQ(late.error().reason(), kNotLeading);
    EXPECT_FALSE(may_have_happened(late.error()));
    EXPECT_FALSE(leader.update(types::kConfigMap, map, {}).ok());
    EXPECT_FALSE(leader.create(types::kConfigMap, "default", map, {}).ok());
    EXPECT_FALSE(leader.remove(types::kConfigMap, key, {}).ok());
    valid_until = world.home.now() + 10s;  // renewed
    EXPECT_TRUE(leader.remove(types::kConfigMap, key, {}).ok());
    finished = true;
  });
  ASSERT_TRUE(world.sim.run_until([&] { return finished; }, 60s));
}

}  // namespace
}  // namespace rubato::kube
