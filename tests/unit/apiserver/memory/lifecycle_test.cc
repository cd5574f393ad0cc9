#include "tests/unit/apiserver/memory/fixture.h"

#include <gtest/gtest.h>

namespace rubato::kube::testing {
namespace {

using json::Value;

class LifecycleTest : public ::testing::Test, protected ServerFixture {
 protected:
  bool exists(const ResourceType& type, const std::string& name,
              const std::string& ns = "default") {
    return server.get(type, {ns, name}).ok();
  }
  DeleteOptions propagating(const std::string& how) {
    DeleteOptions options;
    options.propagation = how;
    return options;
  }
};

TEST_F(LifecycleTest, DependentsFollowTheirLastOwner) {
  const Value owner = make(kWidget, widget("owner"));
  make(types::kPod, owned_by(pod("child"), owner));
  ASSERT_TRUE(server.remove(kWidget, {"default", "owner"}).ok());
  EXPECT_FALSE(exists(types::kPod, "child"));
}

TEST_F(LifecycleTest, AnObjectBornToADeadOwnerGoesAtOnce) {
  const Value owner = make(kWidget, widget("owner"));
  ASSERT_TRUE(server.remove(kWidget, {"default", "owner"}).ok());
  make(types::kPod, owned_by(pod("late"), owner));
  EXPECT_FALSE(exists(types::kPod, "late"));
}

TEST_F(LifecycleTest, ForegroundWaitsForABoundPod) {
  const Value owner = make(kWidget, widget("owner"));
  make(types::kPod, owned_by(pod("child"), owner));
  WriteOptions bind;
  bind.subresource = "binding";
  ASSERT_TRUE(server.create(types::kPod, "default", binding("child", "n1"), bind).ok());
  const auto removal = server.remove(kWidget, {"default", "owner"}, propagating("Foreground"));
  ASSERT_TRUE(removal.ok());
  EXPECT_FALSE(removal->gone);
  EXPECT_TRUE(exists(kWidget, "owner"));
  const auto terminating = server.get(types::kPod, {"default", "child"});
  ASSERT_TRUE(terminating.ok());
  EXPECT_EQ(terminating.value()["metadata"]["deletionGracePeriodSeconds"].int_or(0), 30);
  DeleteOptions now;
  now.grace_period_seconds = 0;
  ASSERT_TRUE(server.remove(types::kPod, {"default", "child"}, now).ok());
  EXPECT_FALSE(exists(types::kPod, "child"));
  EXPECT_FALSE(exists(kWidget, "owner"));
}

TEST_F(LifecycleTest, AGraceBeyondAllTimesEndsAtTheLast) {
  const std::pair<const char*, std::int64_t> cases[] = {
      {"9223372036854775807", 1 << 30}, {"10000000000", 1 << 30}, {"-5", 1}};
  int number = 0;
  for (const auto& [asked, given] : cases) {
    const std::string name = "pod-" + std::to_string(number++);
    Value patient = pod(name);
    patient.at("spec").set("nodeName", "n1");
    patient.at("spec").set("terminationGracePeriodSeconds", json::parse(asked).value());
    make(types::kPod, patient);
    const auto removal = server.remove(types::kPod, {"default", name});
    ASSERT_TRUE(removal.ok());
    EXPECT_EQ(removal->object["metadata"]["deletionGracePeriodSeconds"].int_or(0), given) << asked;
    const std::string end = removal->object["metadata"]["deletionTimestamp"].string_or("");
    EXPECT_GT(parse_rfc3339(end).value(), clock.wall()) << end;
  }
}

TEST_F(LifecycleTest, OrphansStay) {
  const Value owner = make(kWidget, widget("owner"));
  make(types::kPod, owned_by(pod("child"), owner));
  ASSERT_TRUE(server.remove(kWidget, {"default", "owner"}, propagating("Orphan")).ok());
  EXPECT_FALSE(exists(kWidget, "owner"));
  const auto child = server.get(types::kPod, {"default", "child"});
  ASSERT_TRUE(child.ok());
  EXPECT_TRUE(child.value()["metadata"]["ownerReferences"].is_null());
}

TEST_F(LifecycleTest, AFinalizerHoldsTheObject) {
  Value held = widget("held");
  held.at("metadata").set("finalizers", Value::array({"example.dev/clean"}));
  make(kWidget, held);
  const auto removal = server.remove(kWidget, {"default", "held"});
  ASSERT_TRUE(removal.ok());
  EXPECT_FALSE(removal->gone);
  EXPECT_EQ(removal->object["metadata"]["generation"].int_or(0), 2);
  const Value patch = json::parse(R"({"metadata":{"finalizers":null}})").value();
  ASSERT_TRUE(server.patch(kWidget, {"default", "held"}, PatchType::kMerge, patch).ok());
  EXPECT_FALSE(exists(kWidget, "held"));
}

TEST_F(LifecycleTest, ANamespaceTakesItsContentWithIt) {
  make(types::kNamespace, Value::object({{"metadata", Value::object({{"name", "team"}})}}));
  Value held = widget("held", "team");
  held.at("metadata").set("finalizers", Value::array({"example.dev/clean"}));
  make(kWidget, held);
  make(kWidget, widget("free", "team"));
  ASSERT_TRUE(server.remove(types::kNamespace, {"", "team"}).ok());
  EXPECT_FALSE(exists(kWidget, "free", "team"));
  const auto refused = server.create(kWidget, "team", widget("new", "team"));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, 403);
  EXPECT_EQ(refused.error().to_error().reason(), "NamespaceTerminating");
  const Value patch = json::parse(R"({"metadata":{"finalizers":[]}})").value();
  ASSERT_TRUE(server.patch(kWidget, {"team", "held"}, PatchType::kMerge, patch).ok());
  EXPECT_FALSE(exists(types::kNamespace, "team", ""));
}

TEST_F(LifecycleTest, ADefinitionTakesItsObjectsWithIt) {
  make(kWidget, widget("a"));
  ASSERT_TRUE(server.remove(types::kCustomResourceDefinition, {"", "widgets.example.dev"}).ok());
  EXPECT_EQ(server.get(kWidget, {"default", "a"}).error().message,
            "the server could not find the requested resource");
}

TEST_F(LifecycleTest, EventsExpire) {
  const Value event =
      json::parse(
          R"({"metadata":{"name":"e1","namespace":"default"},"reason":"Old","type":"Normal"})")
          .value();
  const ResourceType core{"", "v1", "events", "Event", true};
  make(core, event);
  clock.advance(2h);
  Value next = event;
  next.at("metadata").set("name", "e2");
  make(core, next);
  EXPECT_FALSE(exists(core, "e1"));
  EXPECT_TRUE(exists(types::kEvent, "e2"));
}

TEST_F(LifecycleTest, AnEventLivesOnFromItsLastWrite) {
  const auto event = [](const std::string& name) {
    return Value::object({{"metadata", Value::object({{"name", name}, {"namespace", "default"}})},
                          {"reason", "Repeated"},
                          {"type", "Normal"}});
  };
  make(types::kEvent, event("e1"));
  clock.advance(40min);
  const Value series =
      Value::object({{"count", 2}, {"lastObservedTime", to_rfc3339_micro(clock.wall())}});
  ASSERT_TRUE(server
                  .patch(types::kEvent, {"default", "e1"}, PatchType::kMerge,
                         Value::object({{"series", series}}))
                  .ok());
  clock.advance(30min);
  make(types::kEvent, event("e2"));  // a new event is when old ones are dropped
  EXPECT_TRUE(exists(types::kEvent, "e1"));
  clock.advance(31min);
  make(types::kEvent, event("e3"));
  EXPECT_FALSE(exists(types::kEvent, "e1"));
  EXPECT_TRUE(exists(types::kEvent, "e2"));
}

}  // namespace
}  // namespace rubato::kube::testing
