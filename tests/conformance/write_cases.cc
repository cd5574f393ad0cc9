// Patches and subresources.
#include "tests/conformance/target.h"

namespace rubato::kube::conformance {
namespace {

using json::Value;

class Writes : public Conformance {
 protected:
  Result<Value> patch(PatchType kind, const char* body, const WriteOptions& options = {}) {
    return client().patch(kWidget, key("a"), kind, parsed(body), options);
  }
  static WriteOptions on(const char* subresource) {
    WriteOptions options;
    options.subresource = subresource;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(, Writes, ::testing::ValuesIn(target_names()), name_of_target);

TEST_P(Writes, MergePatchesMergeAndRemove) {
  make(kWidget, widget("a"));
  const auto set =
      patch(PatchType::kMerge,
            R"({"metadata":{"labels":{"k":"v"}},"spec":{"tags":["x"],"size":"small"}})");
  ASSERT_TRUE(set.ok()) << set.error().to_string();
  const auto cleared =
      patch(PatchType::kMerge, R"({"metadata":{"labels":{"k":null}},"spec":{"size":null}})");
  ASSERT_TRUE(cleared.ok());
  EXPECT_FALSE((*cleared)["metadata"].has("labels"));
  EXPECT_FALSE((*cleared)["spec"].has("size"));
  EXPECT_EQ((*cleared)["spec"]["tags"].size(), 1U);
  EXPECT_EQ((*cleared)["metadata"]["generation"].int_or(0), 3);
}

TEST_P(Writes, AnEmptyPatchKeepsTheVersion) {
  const Value made = make(kWidget, widget("a"));
  const auto same = patch(PatchType::kMerge, R"({"spec":{"image":"img:1"}})");
  ASSERT_TRUE(same.ok());
  EXPECT_EQ(resource_version_of(*same), resource_version_of(made));
}

TEST_P(Writes, APatchMayDemandAVersion) {
  make(kWidget, widget("a"));
  const auto stale =
      patch(PatchType::kMerge, R"({"metadata":{"resourceVersion":"1"},"spec":{"replicas":2}})");
  EXPECT_EQ(stale.error().code(), Code::kConflict);
  EXPECT_EQ(stale.error().reason(), "Conflict");
}

TEST_P(Writes, JsonPatchesTestAndReplace) {
  make(kWidget, widget("a"));
  const auto done = patch(PatchType::kJson,
                          R"([{"op":"test","path":"/spec/image","value":"img:1"},
                              {"op":"replace","path":"/spec/image","value":"img:2"},
                              {"op":"add","path":"/spec/tags","value":["x"]}])");
  ASSERT_TRUE(done.ok()) << done.error().to_string();
  EXPECT_EQ((*done)["spec"]["image"].string_or(""), "img:2");
  const auto failed =
      patch(PatchType::kJson, R"([{"op":"test","path":"/spec/image","value":"img:1"}])");
  EXPECT_EQ(failed.error().code(), Code::kConflict);
  EXPECT_EQ(failed.error().reason(), "TestFailed");
}

TEST_P(Writes, AStrategicPatchOfACustomTypeIsNotUnderstood) {
  make(kWidget, widget("a"));
  EXPECT_EQ(said(patch(PatchType::kStrategicMerge, R"({"spec":{"replicas":2}})").error()),
            "invalid UnsupportedMediaType: the body of the request was in an unknown format - "
            "accepted media types include: application/json-patch+json, "
            "application/merge-patch+json, application/apply-patch+yaml");
}

TEST_P(Writes, ApplyCreatesAndMerges) {
  const std::string object =
      R"({"apiVersion":"example.dev/v1","kind":"Widget","metadata":{"name":"a"},
      "spec":{"image":"img:1","ports":[{"name":"x","port":1}]}})";
  const auto made = patch(PatchType::kApply, object.c_str());
  ASSERT_TRUE(made.ok()) << made.error().to_string();
  WriteOptions other;
  other.field_manager = "somebody-else";
  const auto merged =
      patch(PatchType::kApply,
            R"({"apiVersion":"example.dev/v1","kind":"Widget","metadata":{"name":"a"},
                                "spec":{"ports":[{"name":"y","port":2}],"replicas":4}})",
            other);
  ASSERT_TRUE(merged.ok()) << merged.error().to_string();
  EXPECT_EQ((*merged)["spec"]["ports"].size(), 2U);
  EXPECT_EQ((*merged)["spec"]["image"].string_or(""), "img:1");
  EXPECT_EQ((*merged)["spec"]["replicas"].int_or(0), 4);
}

TEST_P(Writes, APatchGivesNoOtherName) {
  Value object = Value::object(
      {{"apiVersion", "v1"}, {"kind", "ConfigMap"}, {"metadata", Value::object({{"name", "a"}})}});
  make(types::kConfigMap, object);
  const auto patched = [&](PatchType kind, const Value& body, const char* name = "a") {
    return said(client().patch(types::kConfigMap, key(name), kind, body).error());
  };
  object.at("metadata").set("name", "other");
  const std::string refusal = "invalid BadRequest: the name of the object (other) does not match ";
  EXPECT_EQ(patched(PatchType::kMerge, object), refusal + "the name on the URL (a)");
  EXPECT_EQ(patched(PatchType::kApply, object), refusal + "the name on the URL (a)");
  EXPECT_EQ(patched(PatchType::kApply, object, "new"), refusal + "the name on the URL (new)");
  EXPECT_EQ(patched(PatchType::kMerge, parsed(R"({"metadata":{"name":null}})")),
            "invalid BadRequest: the name of the object (a based on URL) was undeterminable: name "
            "must be provided");
}

TEST_P(Writes, TheStatusIsApart) {
  Value object = widget("a");
  object.set("status", Value::object({{"phase", "Early"}}));
  Value made = make(kWidget, object);
  EXPECT_FALSE(made.has("status"));
  const auto status =
      patch(PatchType::kMerge, R"({"status":{"phase":"Up"},"spec":{"replicas":7}})", on("status"));
  ASSERT_TRUE(status.ok()) << status.error().to_string();
  EXPECT_EQ((*status)["status"]["phase"].string_or(""), "Up");
  EXPECT_EQ((*status)["spec"]["replicas"].int_or(0), 1);
  EXPECT_EQ((*status)["metadata"]["generation"].int_or(0), 1);
  const auto spec =
      patch(PatchType::kMerge, R"({"status":{"phase":"Down"},"spec":{"replicas":7}})");
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ((*spec)["status"]["phase"].string_or(""), "Up");
  EXPECT_EQ((*spec)["spec"]["replicas"].int_or(0), 7);
  EXPECT_EQ((*spec)["metadata"]["generation"].int_or(0), 2);
}

TEST_P(Writes, TheStatusMayBeReplacedUnderItsVersion) {
  Value made = make(kWidget, widget("a"));
  made.set("status", Value::object({{"phase", "Up"}}));
  made.at("metadata").set("labels", Value::object({{"ignored", "yes"}}));
  const auto first = client().update(kWidget, made, on("status"));
  ASSERT_TRUE(first.ok()) << first.error().to_string();
  EXPECT_FALSE((*first)["metadata"].has("labels"));
  EXPECT_EQ(client().update(kWidget, made, on("status")).error().code(), Code::kConflict);
}

TEST_P(Writes, ScaleIsAView) {
  make(kWidget, widget("a"));
  ASSERT_TRUE(
      patch(PatchType::kMerge, R"({"status":{"replicas":1,"selector":"a=b"}})", on("status")).ok());
  const auto scale = client().get(kWidget, key("a"), "scale");
  ASSERT_TRUE(scale.ok()) << scale.error().to_string();
  EXPECT_EQ((*scale)["kind"].string_or(""), "Scale");
  EXPECT_EQ((*scale)["apiVersion"].string_or(""), "autoscaling/v1");
  EXPECT_EQ((*scale)["spec"]["replicas"].int_or(0), 1);
  EXPECT_EQ((*scale)["status"]["replicas"].int_or(0), 1);
  EXPECT_EQ((*scale)["status"]["selector"].string_or(""), "a=b");
  const auto patched = patch(PatchType::kMerge, R"({"spec":{"replicas":4}})", on("scale"));
  ASSERT_TRUE(patched.ok()) << patched.error().to_string();
  EXPECT_EQ((*patched)["spec"]["replicas"].int_or(0), 4);
  EXPECT_EQ((*client().get(kWidget, key("a")))["spec"]["replicas"].int_or(0), 4);
  Value next = *patched;
  next.at("spec").set("replicas", 5);
  ASSERT_TRUE(client().update(kWidget, next, on("scale")).ok());
  EXPECT_EQ(client().update(kWidget, next, on("scale")).error().code(), Code::kConflict);
  const auto bad = patch(PatchType::kMerge, R"({"spec":{"replicas":40}})", on("scale"));
  EXPECT_EQ(said(bad.error()),
            "invalid Invalid: Widget.example.dev \"a\" is invalid: spec.replicas: Invalid value: "
            "40: spec.replicas in body should be less than or equal to 10");
}

TEST_P(Writes, BuiltInListsMergeByKey) {
  make(types::kPod, pod("p"));
  const auto patched =
      client().patch(types::kPod, key("p"), PatchType::kStrategicMerge,
                     parsed(R"({"spec":{"containers":[{"name":"main","image":"x:2"}]},
                 "metadata":{"finalizers":["example.dev/f"]}})"),
                     {});
  ASSERT_TRUE(patched.ok()) << patched.error().to_string();
  EXPECT_EQ((*patched)["spec"]["containers"].size(), 1U);
  EXPECT_EQ((*patched)["spec"]["containers"][0]["image"].string_or(""), "x:2");
  const auto cleared = client().patch(
      types::kPod, key("p"), PatchType::kStrategicMerge,
      parsed(R"({"metadata":{"$deleteFromPrimitiveList/finalizers":["example.dev/f"]}})"), {});
  ASSERT_TRUE(cleared.ok());
  EXPECT_FALSE((*cleared)["metadata"].has("finalizers"));
}

TEST_P(Writes, NodesTakeConditionsByType) {
  const std::string name = "node-" + ns();
  make(types::kNode, Value::object({{"apiVersion", "v1"},
                                    {"kind", "Node"},
                                    {"metadata", Value::object({{"name", name}})}}));
  const auto report = [&](const char* status) {
    return client().patch(types::kNode, {"", name}, PatchType::kStrategicMerge,
                          parsed((std::string(R"({"status":{"capacity":{"example.dev/slot":"4"},
                                  "conditions":[{"type":"Ready","status":")") +
                                  status + R"("}]}})")
                                     .c_str()),
                          on("status"));
  };
  ASSERT_TRUE(report("False").ok());
  const auto ready = report("True");
  ASSERT_TRUE(ready.ok()) << ready.error().to_string();
  EXPECT_EQ((*ready)["status"]["conditions"].size(), 1U);
  EXPECT_EQ((*ready)["status"]["conditions"][0]["status"].string_or(""), "True");
  EXPECT_EQ((*ready)["status"]["capacity"]["example.dev/slot"].string_or(""), "4");
  EXPECT_TRUE(client().remove(types::kNode, {"", name}).ok());
}

}  // namespace
}  // namespace rubato::kube::conformance
