#include "apiserver/front/node_lifecycle.h"

#include "apiserver/memory/memory_client.h"
#include "common/executor.h"

#include <functional>
#include <utility>

#include <gtest/gtest.h>

namespace rubato::apiserver {
namespace {

using json::Value;

class NodeLifecycleTest : public ::testing::Test {
 protected:
  NodeLifecycleTest() : server_(executor_.clock(), {}), client_(server_, executor_) {
    create(kube::types::kNamespace, "", R"({"metadata":{"name":"kube-node-lease"}})");
  }
  void create(const kube::ResourceType& type, const std::string& ns, const std::string& text) {
    Value object = *json::parse(text);
    object.set("apiVersion", type.api_version());
    object.set("kind", type.kind);
    const auto made = client_.create(type, ns, object, {});
    if (!made.ok() && made.error().code() != Code::kAlreadyExists) {
      ADD_FAILURE() << made.error().to_string();
    }
  }
  void node(const std::string& name, Duration lease_age) {
    create(kube::types::kNode, "", R"({"metadata":{"name":")" + name + R"("}})");
    const Value status = *json::parse(
        R"({"status":{"conditions":[{"type":"Ready","status":"True","reason":"x"}]}})");
    (void)client_.patch(kube::types::kNode, {"", name}, kube::PatchType::kMerge, status,
                        {.subresource = "status"});
    create(kube::types::kLease, "kube-node-lease",
           R"({"metadata":{"name":")" + name +
               R"("},"spec":{"leaseDurationSeconds":4,"renewTime":")" +
               to_rfc3339_micro(executor_.clock().wall() - lease_age) + R"("}})");
  }
  std::string ready(const std::string& name) {
    const auto node = client_.get(kube::types::kNode, {"", name}, "");
    return (*node)["status"]["conditions"][0]["status"].string_or("");
  }

  ThreadExecutor executor_;
  kube::MemoryServer server_;
  kube::MemoryClient client_;
};

TEST_F(NodeLifecycleTest, ANodeWithoutRenewalIsUnknown) {
  node("fresh", 1s);
  node("stale", 10s);
  EXPECT_EQ(*tend_nodes(client_, executor_.clock()), 1);
  EXPECT_EQ(ready("fresh"), "True");
  EXPECT_EQ(ready("stale"), "Unknown");
  EXPECT_EQ(*tend_nodes(client_, executor_.clock()), 0);
}

// A node that registers, and gets a pod, when the nodes have just been listed.
class BusyClient : public kube::MemoryClient {
 public:
  using MemoryClient::MemoryClient;
  Result<kube::ObjectList> list(const kube::ResourceType& type, const std::string& ns,
                                const kube::ListOptions& options) override {
    auto listed = MemoryClient::list(type, ns, options);
    if (type.kind == kube::types::kNode.kind && meanwhile) std::exchange(meanwhile, nullptr)();
    return listed;
  }
  std::function<void()> meanwhile;
};

TEST_F(NodeLifecycleTest, APodThatComesWithItsNodeStays) {
  BusyClient client(server_, executor_);
  client.meanwhile = [&] {
    node("new", 0s);
    create(
        kube::types::kPod, "default",
        R"({"metadata":{"name":"p"},"spec":{"nodeName":"new","containers":[{"name":"c","image":"i"}]}})");
  };
  EXPECT_EQ(*tend_nodes(client, executor_.clock()), 0);
  EXPECT_TRUE(client_.get(kube::types::kPod, {"default", "p"}, "").ok());
}

TEST_F(NodeLifecycleTest, PodsOfADeletedNodeGo) {
  node("here", 1s);
  for (const std::string on : {"here", "gone"}) {
    create(kube::types::kPod, "default",
           R"({"metadata":{"name":"on-)" + on + R"(","namespace":"default"},"spec":{"nodeName":")" +
               on + R"(","containers":[{"name":"c","image":"i"}]}})");
  }
  EXPECT_EQ(*tend_nodes(client_, executor_.clock()), 1);
  EXPECT_TRUE(client_.get(kube::types::kPod, {"default", "on-here"}, "").ok());
  EXPECT_FALSE(client_.get(kube::types::kPod, {"default", "on-gone"}, "").ok());
}

}  // namespace
}  // namespace rubato::apiserver
