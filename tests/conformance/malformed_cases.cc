// Bodies that are JSON, but with another type where their kind has an object, a list, a text or a
// number. Each is refused, and the server goes on.
#include "tests/conformance/target.h"

#include <utility>

namespace rubato::kube::conformance {
namespace {

using json::Value;

class Malformed : public Conformance {
 protected:
  Result<Value> create(const ResourceType& type, const char* body) {
    Value object = parsed(body);
    object.set("apiVersion", type.api_version()).set("kind", type.kind);
    const Value meta = object["metadata"];
    if (meta.is_null() || (meta.is_object() && meta["name"].is_null()))
      object.at("metadata").set("name", "bad");
    return client().create(type, type.namespaced ? ns() : "", object);
  }
  Result<Value> post(const char* subresource, const ResourceType& type, const char* body) {
    Value object = parsed(body);
    object.set("apiVersion", type.api_version()).set("kind", type.kind);
    if (object["metadata"].is_null())
      object.set("metadata", Value::object({{"name", "p"}, {"namespace", ns()}}));
    return client().create(types::kPod, ns(), object, on(subresource));
  }
  static WriteOptions on(const char* subresource) {
    WriteOptions options;
    options.subresource = subresource;
    return options;
  }
  void expect_refused(const Result<Value>& answer, const char* body) {
    ASSERT_FALSE(answer.ok()) << body;
    EXPECT_EQ(answer.error().code(), Code::kInvalid) << body << ": " << answer.error().to_string();
    EXPECT_TRUE(client().get(types::kNamespace, {"", ns()}).ok()) << "after " << body;
  }
};
INSTANTIATE_TEST_SUITE_P(, Malformed, ::testing::ValuesIn(target_names()), name_of_target);

TEST_P(Malformed, SpecsAreRefused) {
  const std::pair<ResourceType, const char*> cases[] = {
      {types::kPod, R"({"spec":"x"})"},
      {types::kPod, R"({"spec":{"containers":"nginx"}})"},
      {types::kPod, R"({"spec":{"containers":["nginx"]}})"},
      {types::kPod, R"({"spec":{"containers":{"name":"c","image":"x:1"}}})"},
      {types::kPod, R"({"spec":{"containers":[{"name":"c","image":"x:1","ports":[80]}]}})"},
      {types::kPod, R"({"spec":{"containers":[{"name":"c","image":"x:1","resources":"x"}]}})"},
      {types::kPod,
       R"({"spec":{"containers":[{"name":"c","image":"x:1","resources":{"limits":{"cpu":1},
           "requests":"x"}}]}})"},
      {types::kPod, R"({"spec":{"containers":[{"name":"c","image":"x:1","env":["A=1"]}]}})"},
      {types::kPod,
       R"({"spec":{"containers":[{"name":"c","image":"x:1",
           "env":[{"name":"A","valueFrom":{"fieldRef":"metadata.name"}}]}]}})"},
      {types::kPod,
       R"({"spec":{"containers":[{"name":"c","image":"x:1","livenessProbe":"/healthz"}]}})"},
      {types::kPod,
       R"({"spec":{"containers":[{"name":"c","image":"x:1"}],"initContainers":["nginx"]}})"},
      {types::kPod, R"({"spec":{"containers":[{"name":"c","image":"x:1"}],"volumes":["v"]}})"},
      {types::kPod,
       R"({"spec":{"containers":[{"name":"c","image":"x:1"}],
           "volumes":[{"name":"v","secret":"s"}]}})"},
      {types::kPod, R"({"spec":{"containers":[{"name":"c","image":"x:1"}],"tolerations":{}}})"},
      {types::kService, R"({"spec":"x"})"},
      {types::kService, R"({"spec":{"ports":[80]}})"},
      {types::kService, R"({"spec":{"ports":{"port":80}}})"},
      {types::kSecret, R"({"data":"x","stringData":{"k":"v"}})"},
      {types::kSecret, R"({"stringData":["v"]})"},
      {types::kConfigMap, R"({"data":["v"]})"},
      {types::kConfigMap, R"({"data":{"k":1}})"},
      {types::kPersistentVolumeClaim, R"({"spec":"x"})"},
      {types::kPersistentVolumeClaim, R"({"spec":{"accessModes":"ReadWriteOnce"}})"},
      {types::kPersistentVolume, R"({"spec":"x"})"},
      {types::kLease, R"({"spec":[]})"},
      {types::kEvent, R"({"regarding":"x"})"},
      {types::kNode, R"({"spec":"x"})"},
      {types::kNode, R"({"status":"x"})"},
      {types::kNamespace, R"({"metadata":{"labels":"x"}})"},
      {types::kPriorityClass, R"({"value":"x"})"},
      {types::kCustomResourceDefinition, R"({"spec":"x"})"},
      {types::kCustomResourceDefinition, R"({"spec":{"names":"x"}})"},
      {types::kCustomResourceDefinition, R"({"spec":{"versions":["v1"]}})"}};
  for (const auto& [type, body] : cases) expect_refused(create(type, body), body);
}

TEST_P(Malformed, MetadataIsRefused) {
  for (const char* body :
       {R"({"metadata":"x"})", R"({"metadata":[]})", R"({"metadata":{"generateName":5}})",
        R"({"metadata":{"labels":"x"}})", R"({"metadata":{"labels":{"k":1}}})",
        R"({"metadata":{"annotations":5}})", R"({"metadata":{"ownerReferences":"x"}})",
        R"({"metadata":{"ownerReferences":["x"]}})", R"({"metadata":{"finalizers":"x"}})",
        R"({"metadata":{"finalizers":[5]}})"})
    expect_refused(create(types::kConfigMap, body), body);
  for (const char* body : {R"({"metadata":{"labels":"x"},"spec":{"image":"img:1"}})",
                           R"({"metadata":{"finalizers":"x"},"spec":{"image":"img:1"}})"})
    expect_refused(create(kWidget, body), body);
}

TEST_P(Malformed, MetadataIsNotTakenAway) {
  make(kWidget, widget("a"));
  for (const auto& [kind, body] :
       {std::pair(PatchType::kMerge, R"({"metadata":null})"),
        std::pair(PatchType::kJson, R"([{"op":"replace","path":"/metadata","value":null}])")}) {
    const auto patched = client().patch(kWidget, key("a"), kind, parsed(body));
    ASSERT_FALSE(patched.ok()) << body;
    EXPECT_EQ(said(patched.error()),
              "invalid BadRequest: the name of the object (a based on URL) was undeterminable: "
              "name must be provided");
  }
}

// Indexes of JSON patches: wider than RFC 6901.
TEST_P(Malformed, IndexesMayCountFromTheEnd) {
  const auto tags_after = [&](const std::string& operation) -> std::string {
    WriteOptions dry;
    dry.dry_run = true;
    const auto done = client().patch(kWidget, key("a"), PatchType::kJson,
                                     parsed(("[" + operation + "]").c_str()), dry);
    return done.ok() ? json::dump((*done)["spec"]["tags"]) : "refused";
  };
  Value object = widget("a");
  object.at("spec").set("tags", Value::array({"a", "b"}));
  make(kWidget, object);
  const std::pair<const char*, const char*> cases[] = {
      {R"({"op":"add","path":"/spec/tags/-1","value":"c"})", R"(["a","b","c"])"},
      {R"({"op":"add","path":"/spec/tags/-3","value":"c"})", R"(["c","a","b"])"},
      {R"({"op":"add","path":"/spec/tags/-4","value":"c"})", "refused"},
      {R"({"op":"add","path":"/spec/tags/01","value":"c"})", R"(["a","c","b"])"},
      {R"({"op":"remove","path":"/spec/tags/-1"})", R"(["a"])"},
      {R"({"op":"remove","path":"/spec/tags/-3"})", "refused"},
      {R"({"op":"replace","path":"/spec/tags/-1","value":"c"})", R"(["a","c"])"}};
  for (const auto& [operation, tags] : cases) EXPECT_EQ(tags_after(operation), tags) << operation;
}

TEST_P(Malformed, PatchesAreRefused) {
  struct Case {
    PatchType kind;
    const char* body;
    const char* subresource = "";
  };
  make(types::kPod, pod("p"));
  const Case cases[] = {
      {PatchType::kMerge, "[]"},
      {PatchType::kMerge, R"("x")"},
      {PatchType::kMerge, R"({"metadata":"x"})"},
      {PatchType::kMerge, R"({"metadata":{"labels":"x"}})"},
      {PatchType::kMerge, R"({"metadata":{"finalizers":"x"}})"},
      {PatchType::kMerge, R"({"spec":"x"})"},
      {PatchType::kMerge, R"({"spec":{"containers":["x"]}})"},
      {PatchType::kMerge, R"({"status":"x"})", "status"},
      {PatchType::kMerge, R"({"status":{"conditions":["x"]}})", "status"},
      {PatchType::kStrategicMerge, "[]"},
      {PatchType::kStrategicMerge, R"({"metadata":{"labels":"x"}})"},
      {PatchType::kStrategicMerge, R"({"spec":"x"})"},
      {PatchType::kJson, "{}"},
      {PatchType::kJson, R"([{"op":"add","path":"/metadata/labels","value":"x"}])"},
      {PatchType::kJson, R"([{"op":"replace","path":"/spec","value":"x"}])"},
      {PatchType::kApply, "[]"}};
  for (const Case& c : cases)
    expect_refused(client().patch(types::kPod, key("p"), c.kind, parsed(c.body), on(c.subresource)),
                   c.body);
  expect_refused(client().patch(types::kPod, key("none"), PatchType::kApply, parsed("[]")),
                 "[] of what is not there");
  bind("p", "some-node");
}

// Without its name the path of one object is that of all of them.
TEST_P(Malformed, KeysWithoutANameAreRefused) {
  make(kWidget, widget("a"));
  for (const char* name : {"", ".", ".."}) {
    const Value nameless = widget(name);
    expect_refused(client().get(kWidget, key(name)), name);
    expect_refused(client().update(kWidget, nameless), name);
    expect_refused(client().patch(kWidget, key(name), PatchType::kMerge, nameless), name);
    expect_refused(client().create(kWidget, ns(), nameless, on("scale")), name);
    const Status removed = client().remove(kWidget, key(name));
    ASSERT_FALSE(removed.ok()) << name;
    EXPECT_EQ(removed.error().code(), Code::kInvalid);
  }
  EXPECT_TRUE(exists(kWidget, "a"));
}

TEST_P(Malformed, BodiesOfSubresourcesAreRefused) {
  const ResourceType binding{"", "v1", "bindings", "Binding", true};
  const ResourceType eviction{"policy", "v1", "evictions", "Eviction", true};
  make(types::kPod, pod("p"));
  for (const char* body :
       {R"({"target":"n1"})",
        R"({"metadata":{"name":"p","annotations":"x"},"target":{"kind":"Node","name":"n1"}})"})
    expect_refused(post("binding", binding, body), body);
  for (const char* body : {R"({"deleteOptions":"x"})", R"({"deleteOptions":{"dryRun":"All"}})"})
    expect_refused(post("eviction", eviction, body), body);
  const auto kept = client().get(types::kPod, key("p"));
  ASSERT_TRUE(kept.ok());
  EXPECT_TRUE((*kept)["spec"]["nodeName"].is_null());
  make(kWidget, widget("a"));
  for (const char* body :
       {R"({"metadata":"x"})", R"({"spec":"x"})", R"({"spec":{"replicas":"x"}})"})
    expect_refused(client().patch(kWidget, key("a"), PatchType::kMerge, parsed(body), on("scale")),
                   body);
  EXPECT_EQ((*client().get(kWidget, key("a")))["spec"]["replicas"].int_or(0), 1);
}

TEST_P(Malformed, AScaleWritesBelowTheSpecOnly) {
  const char* const definition = R"({
    "metadata": {"name": "bads.example.dev"},
    "spec": {"group": "example.dev", "scope": "Namespaced",
      "names": {"plural": "bads", "singular": "bad", "kind": "Bad", "listKind": "BadList"},
      "versions": [{"name": "v1", "served": true, "storage": true,
        "subresources": {"scale": {"specReplicasPath": ".metadata",
                                   "statusReplicasPath": ".status.replicas"}},
        "schema": {"openAPIV3Schema": {"type": "object"}}}]}})";
  expect_refused(create(types::kCustomResourceDefinition, definition), definition);
}

}  // namespace
}  // namespace rubato::kube::conformance
