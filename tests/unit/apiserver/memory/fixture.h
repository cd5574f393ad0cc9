// A server on a clock that the test moves, with a custom type installed.
#pragma once

#include "apiserver/memory/memory_server.h"

#include <string>

namespace rubato::kube::testing {

class ManualClock : public Clock {
 public:
  MonoTime now() const override { return now_; }
  WallTime wall() const override {
    return WallTime(std::chrono::seconds(1'700'000'000)) + now_.time_since_epoch();
  }
  void advance(Duration by) { now_ += by; }

 private:
  MonoTime now_{};
};

inline const ResourceType kWidget{"example.dev", "v1", "widgets", "Widget", true};

inline json::Value widget_crd() {
  const auto parsed = json::parse(R"({
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.dev"},
    "spec": {"group": "example.dev", "scope": "Namespaced",
      "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "shortNames": ["wg"]},
      "versions": [{"name": "v1", "served": true, "storage": true,
        "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
                                                  "statusReplicasPath": ".status.replicas"}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {
          "spec": {"type": "object", "required": ["image"], "properties": {
            "image": {"type": "string", "minLength": 1},
            "replicas": {"type": "integer", "minimum": 0, "maximum": 10, "default": 1},
            "size": {"type": "string", "enum": ["small", "large"]},
            "extra": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "port": {"x-kubernetes-int-or-string": true},
            "ports": {"type": "array", "x-kubernetes-list-type": "map",
                      "x-kubernetes-list-map-keys": ["name"],
                      "items": {"type": "object", "required": ["name"], "properties": {
                        "name": {"type": "string"}, "port": {"type": "integer"}}}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}}}},
          "status": {"type": "object", "properties": {
            "replicas": {"type": "integer"}, "phase": {"type": "string"}}}}}}}]}})");
  return parsed.value();
}

inline json::Value widget(const std::string& name, const std::string& ns = "default") {
  return json::Value::object(
      {{"apiVersion", "example.dev/v1"},
       {"kind", "Widget"},
       {"metadata", json::Value::object({{"name", name}, {"namespace", ns}})},
       {"spec", json::Value::object({{"image", "img:1"}})}});
}

inline json::Value pod(const std::string& name, const std::string& ns = "default") {
  return json::Value::object(
      {{"apiVersion", "v1"},
       {"kind", "Pod"},
       {"metadata", json::Value::object({{"name", name}, {"namespace", ns}})},
       {"spec",
        json::Value::object({{"containers", json::Value::array({json::Value::object(
                                                {{"name", "main"}, {"image", "x:1"}})})}})}});
}

inline json::Value binding(const std::string& name, const std::string& node) {
  return json::Value::object({{"apiVersion", "v1"},
                              {"kind", "Binding"},
                              {"metadata", json::Value::object({{"name", name}})},
                              {"target", json::Value::object({{"kind", "Node"}, {"name", node}})}});
}

inline json::Value owned_by(json::Value object, const json::Value& owner, bool blocks = true) {
  object.at("metadata")
      .set("ownerReferences",
           json::Value::array({json::Value::object({{"apiVersion", owner["apiVersion"]},
                                                    {"kind", owner["kind"]},
                                                    {"name", name_of(owner)},
                                                    {"uid", uid_of(owner)},
                                                    {"controller", true},
                                                    {"blockOwnerDeletion", blocks}})}));
  return object;
}

struct ServerFixture {
  ManualClock clock;
  MemoryServer server{clock};
  ServerFixture() { CHECK(server.create(types::kCustomResourceDefinition, "", widget_crd()).ok()); }
  json::Value make(const ResourceType& type, const json::Value& object) {
    auto made = server.create(type, namespace_of(object), object);
    if (!made.ok()) check_failed(__FILE__, __LINE__, made.error().message);
    return made->object;
  }
};

}  // namespace rubato::kube::testing
