#include "tests/conformance/target.h"

#include "apiserver/memory/memory_client.h"
#include "common/metrics.h"
#include "common/rng.h"
#include "kube/kubeconfig.h"
#include "kube/rest_client.h"

#include <cstdlib>
#include <map>

namespace rubato::kube::conformance {
namespace {

using json::Value;

constexpr Duration kPollPeriod = 20ms;
constexpr Duration kPatience = 30s;

const char* environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

class MemoryTarget : public Target {
 public:
  Client& client() override { return client_; }
  Executor& executor() override { return executor_; }
  bool collects() const override { return true; }

 private:
  ThreadExecutor executor_;
  static ServerOptions options() {
    ServerOptions out;
    out.history_events = 8;  // the cases look back less; version 1 is soon gone
    return out;
  }
  MemoryServer server_{executor_.clock(), options()};
  MemoryClient client_{server_, executor_};
};

class ServerTarget : public Target {
 public:
  explicit ServerTarget(const std::string& kubeconfig) {
    KubeconfigOptions options;
    options.path = kubeconfig;
    auto config = load_kubeconfig(options);
    if (!config.ok()) check_failed(__FILE__, __LINE__, config.error().to_string());
    auto made = RestClient::make(*config, executor_, metrics_);
    if (!made.ok()) check_failed(__FILE__, __LINE__, made.error().to_string());
    client_ = std::move(made).value();
  }
  Client& client() override { return *client_; }
  Executor& executor() override { return executor_; }
  bool collects() const override { return environment("RUBATO_CONFORMANCE_COLLECTS") != nullptr; }

 private:
  ThreadExecutor executor_;
  Metrics metrics_;
  std::unique_ptr<RestClient> client_;
};

const char* const kDefinition = R"({
  "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
  "metadata": {"name": "widgets.example.dev"},
  "spec": {"group": "example.dev", "scope": "Namespaced",
    "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "shortNames": ["wg"],
              "categories": ["all"]},
    "versions": [{"name": "v1", "served": true, "storage": true,
      "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
                                                "statusReplicasPath": ".status.replicas",
                                                "labelSelectorPath": ".status.selector"}},
      "schema": {"openAPIV3Schema": {"type": "object", "required": ["spec"], "properties": {
        "spec": {"type": "object", "required": ["image"], "properties": {
          "image": {"type": "string", "minLength": 1, "maxLength": 20},
          "name": {"type": "string", "pattern": "^[a-z]+$"},
          "replicas": {"type": "integer", "minimum": 0, "maximum": 10, "default": 1},
          "ratio": {"type": "number", "minimum": 0, "exclusiveMinimum": true},
          "step": {"type": "integer", "multipleOf": 5},
          "small": {"type": "integer", "format": "int32"},
          "on": {"type": "boolean"},
          "size": {"type": "string", "enum": ["small", "medium", "large"]},
          "at": {"type": "string", "format": "date-time"},
          "note": {"type": "string", "nullable": true},
          "port": {"x-kubernetes-int-or-string": true},
          "tags": {"type": "array", "minItems": 1, "maxItems": 3, "x-kubernetes-list-type": "set",
                   "items": {"type": "string"}},
          "ports": {"type": "array", "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {"type": "object", "required": ["name"], "properties": {
                      "name": {"type": "string"}, "port": {"type": "integer", "default": 80}}}},
          "steps": {"type": "array", "items": {"type": "object", "properties": {
                      "run": {"type": "string"}}}},
          "labels": {"type": "object", "maxProperties": 2,
                     "additionalProperties": {"type": "string"}},
          "nested": {"type": "object", "default": {}, "properties": {
                       "depth": {"type": "integer", "default": 3}}},
          "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
          "either": {"type": "object", "properties": {"a": {"type": "string"},
                                                      "b": {"type": "string"}},
                     "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}}},
        "status": {"type": "object", "properties": {
          "replicas": {"type": "integer"}, "phase": {"type": "string"},
          "selector": {"type": "string"},
          "conditions": {"type": "array", "x-kubernetes-list-type": "map",
                         "x-kubernetes-list-map-keys": ["type"],
                         "items": {"type": "object", "required": ["type"], "properties": {
                           "type": {"type": "string"}, "status": {"type": "string"}}}}}}}}}}]}})";

void install(Target& on) {
  const Value crd = parsed(kDefinition);
  const auto made = on.client().create(types::kCustomResourceDefinition, "", crd, {});
  if (!made.ok() && made.error().code() != Code::kAlreadyExists)
    check_failed(__FILE__, __LINE__, made.error().to_string());
  const MonoTime deadline = on.executor().now() + kPatience;
  while (!on.client().list(kWidget, "default", {}).ok()) {
    CHECK(on.executor().now() < deadline);
    on.executor().sleep_for(kPollPeriod);
  }
}

}  // namespace

const ResourceType kWidget{"example.dev", "v1", "widgets", "Widget", true};

Value parsed(const char* text) {
  auto value = json::parse(text);
  if (!value.ok()) check_failed(__FILE__, __LINE__, value.error().to_string());
  return std::move(value).value();
}

std::string said(const Error& error) {
  std::string text = error.what();
  for (const char* verb : {"GET /", "POST /", "PUT /", "PATCH /", "DELETE /", "WATCH /"})
    if (text.starts_with(verb)) text = text.substr(text.find(": ") + 2);
  return std::string(name_of(error.code())) + " " + error.reason() + ": " + text;
}

std::vector<std::string> target_names() {
  std::vector<std::string> out = {"memory"};
  if (environment("RUBATO_CONFORMANCE_KUBECONFIG") != nullptr) out.emplace_back("server");
  return out;
}

namespace {

// Made when first asked for; gone before main returns, as a RestClient must be.
class Targets : public ::testing::Environment {
 public:
  void TearDown() override { made.clear(); }
  std::map<std::string, std::unique_ptr<Target>> made;
};

auto* const kTargets = static_cast<Targets*>(::testing::AddGlobalTestEnvironment(new Targets));

}  // namespace

Target& target(const std::string& name) {
  std::unique_ptr<Target>& slot = kTargets->made[name];
  if (slot == nullptr) {
    if (name == "memory")
      slot = std::make_unique<MemoryTarget>();
    else
      slot = std::make_unique<ServerTarget>(environment("RUBATO_CONFORMANCE_KUBECONFIG"));
    install(*slot);
  }
  return *slot;
}

void Conformance::SetUp() {
  static const std::uint64_t kRun = random_seed() % 0xFFFFFF;
  static int count = 0;
  ns_ = "c" + std::to_string(kRun) + "-" + std::to_string(++count);
  const Value object = Value::object(
      {{"apiVersion", "v1"}, {"kind", "Namespace"}, {"metadata", Value::object({{"name", ns_}})}});
  const auto made = client().create(types::kNamespace, "", object, {});
  ASSERT_TRUE(made.ok()) << made.error().to_string();
}

void Conformance::TearDown() { (void)client().remove(types::kNamespace, {"", ns_}, {}); }

Value Conformance::widget(const std::string& name) const {
  return Value::object({{"apiVersion", "example.dev/v1"},
                        {"kind", "Widget"},
                        {"metadata", Value::object({{"name", name}, {"namespace", ns_}})},
                        {"spec", Value::object({{"image", "img:1"}})}});
}

Value Conformance::pod(const std::string& name) const {
  const Value container = Value::object({{"name", "main"}, {"image", "x:1"}});
  return Value::object({{"apiVersion", "v1"},
                        {"kind", "Pod"},
                        {"metadata", Value::object({{"name", name}, {"namespace", ns_}})},
                        {"spec", Value::object({{"containers", Value::array({container})}})}});
}

Value Conformance::make(const ResourceType& type, const Value& object) {
  Value out;
  Error last(Code::kInternal, "not tried");
  const bool done = eventually([&] {
    auto made = client().create(type, type.namespaced ? ns_ : "", object, {});
    if (made.ok()) {
      out = std::move(made).value();
      return true;
    }
    last = made.error();
    const bool wait =
        type == types::kPod && last.what().find("serviceaccount") != std::string::npos;
    return !wait;
  });
  EXPECT_TRUE(done && !out.is_null()) << last.to_string();
  return out;
}

void Conformance::bind(const std::string& pod_name, const std::string& node) {
  const auto registered = client().create(  // servers remove pods of nodes that do not exist
      types::kNode, "",
      Value::object(
          {{"apiVersion", "v1"}, {"kind", "Node"}, {"metadata", Value::object({{"name", node}})}}),
      {});
  EXPECT_TRUE(registered.ok() || registered.error().code() == Code::kAlreadyExists)
      << registered.error().to_string();
  const Value binding = Value::object(
      {{"apiVersion", "v1"},
       {"kind", "Binding"},
       {"metadata", Value::object({{"name", pod_name}, {"namespace", ns_}})},
       {"target", Value::object({{"apiVersion", "v1"}, {"kind", "Node"}, {"name", node}})}});
  WriteOptions options;
  options.subresource = "binding";
  const auto bound = client().create(types::kPod, ns_, binding, options);
  EXPECT_TRUE(bound.ok()) << bound.error().to_string();
}

bool Conformance::exists(const ResourceType& type, const std::string& name) {
  return client().get(type, {type.namespaced ? ns_ : "", name}).ok();
}

bool Conformance::eventually(const std::function<bool()>& holds) {
  const MonoTime deadline = executor().now() + kPatience;
  while (!holds()) {
    if (executor().now() > deadline) return false;
    executor().sleep_for(kPollPeriod);
  }
  return true;
}

std::string Conformance::next_event(Watch& watch) {
  while (true) {
    auto event = watch.next(soon());
    if (!event.ok()) return said(event.error());
    if (event->type == EventType::kBookmark) continue;
    static const char* const kNames[] = {"ADDED", "MODIFIED", "DELETED"};
    const auto object = event->object();
    if (!object.ok()) return said(object.error());
    return std::string(kNames[static_cast<int>(event->type)]) + " " + name_of(*object);
  }
}

}  // namespace rubato::kube::conformance
