// The Kubernetes client machinery against a real kube-apiserver: RUBATO_CONFORMANCE_KUBECONFIG
// names its kubeconfig (test_kube_client.py starts one). Without it every test is skipped.
#include "kube/errors.h"
#include "kube/events.h"
#include "kube/informer.h"
#include "kube/leader_election.h"
#include "kube/objects/object.h"
#include "kube/objects/pod.h"
#include "kube/rest_client.h"

#include <cstdlib>

#include <gtest/gtest.h>

namespace rubato::kube {
namespace {

using json::Value;

constexpr auto kPatience = 60s;  // of every wait

Value config_map(const std::string& name, const std::string& value) {
  return Value::object(
      {{"apiVersion", "v1"},
       {"kind", "ConfigMap"},
       {"metadata", Value::object({{"name", name},
                                   {"namespace", "default"},
                                   {"labels", Value::object({{"suite", "kube-client"}})}})},
       {"data", Value::object({{"value", value}})}});
}

Value pod(const std::string& name) {
  return json::parse(
             R"({"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"default","name":")" +
             name + R"(","labels":{"suite":"kube-client"}},
      "spec":{"automountServiceAccountToken":false,"schedulerName":"rubato","containers":[{"name":"w",
      "image":"x","resources":{"limits":{"cpu":"1500m","memory":"1Gi","example.com/gpu":"2"}}}]}})")
      .value();
}

struct KubeClient : ::testing::Test {
  void SetUp() override {
    const char* path = std::getenv("RUBATO_CONFORMANCE_KUBECONFIG");
    if (path == nullptr) GTEST_SKIP() << "RUBATO_CONFORMANCE_KUBECONFIG is not set";
    KubeconfigOptions options;
    options.path = path;
    auto connected = connect(options, executor, metrics);
    ASSERT_TRUE(connected.ok()) << connected.error().to_string();
    client = std::move(connected).value();
  }
  // Waits for what another task brings about.
  bool wait_for(const std::function<bool()>& done) {
    const MonoTime limit = executor.now() + kPatience;
    while (!done()) {
      if (executor.now() > limit) return false;
      executor.sleep_for(5ms);
    }
    return true;
  }
  Value make(const ResourceType& type, const Value& object) {
    (void)client->remove(type, key_of(object), now());
    auto created = client->create(type, "default", object, {});
    EXPECT_TRUE(created.ok()) << created.error().to_string();
    return created.ok() ? std::move(created).value() : Value();
  }
  static DeleteOptions now() {
    DeleteOptions options;
    options.grace_period_seconds = 0;
    return options;
  }
  ThreadExecutor executor;
  Metrics metrics;
  std::unique_ptr<RestClient> client;
};

TEST_F(KubeClient, WritesAndFailures) {
  const Value created = make(types::kConfigMap, config_map("a", "1"));
  const Key key{"default", "a"};
  EXPECT_EQ(client->create(types::kConfigMap, "default", config_map("a", "1"), {}).error().code(),
            Code::kAlreadyExists);
  EXPECT_EQ(client->get(types::kConfigMap, {"default", "none"}, "").error().code(),
            Code::kNotFound);

  Value changed = created;
  changed.at("data").set("value", "2");
  ASSERT_TRUE(client->update(types::kConfigMap, changed, {}).ok());
  const auto stale = client->update(types::kConfigMap, changed, {});
  EXPECT_EQ(stale.error().code(), Code::kConflict);

  const Value merge = Value::object({{"data", Value::object({{"other", "x"}})}});
  ASSERT_TRUE(client->patch(types::kConfigMap, key, PatchType::kMerge, merge, {}).ok());
  Value apply = config_map("a", "3");
  WriteOptions force;
  force.force = true;
  force.field_manager = "suite";
  const auto applied = client->patch(types::kConfigMap, key, PatchType::kApply, apply, force);
  ASSERT_TRUE(applied.ok()) << applied.error().to_string();
  EXPECT_EQ(applied.value()["data"]["value"].string_or(""), "3");
  EXPECT_EQ(applied.value()["data"]["other"].string_or(""), "x");

  Value bad = config_map("a", "1");
  bad.set("data", 7);
  EXPECT_EQ(client->update(types::kConfigMap, bad, {}).error().code(), Code::kInvalid);
  DeleteOptions wrong = now();
  wrong.uid = "another";
  EXPECT_EQ(client->remove(types::kConfigMap, key, wrong).error().code(), Code::kConflict);
  EXPECT_TRUE(client->remove(types::kConfigMap, key, now()).ok());
  EXPECT_EQ(client->remove(types::kConfigMap, key, now()).error().code(), Code::kNotFound);
}

TEST_F(KubeClient, JsonPatchTests) {
  make(types::kConfigMap, config_map("p", "1"));
  const Key key{"default", "p"};
  const auto patch = [&](const char* text) {
    return client->patch(types::kConfigMap, key, PatchType::kJson, json::parse(text).value(), {});
  };
  EXPECT_TRUE(patch(R"([{"op":"test","path":"/data/value","value":"1"},
                        {"op":"replace","path":"/data/value","value":"2"}])")
                  .ok());
  const auto failed = patch(R"([{"op":"test","path":"/data/value","value":"1"},
                                {"op":"replace","path":"/data/value","value":"3"}])");
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code(), Code::kConflict) << failed.error().to_string();
  EXPECT_EQ(failed.error().reason(), "TestFailed");
  EXPECT_EQ(patch(R"([{"op":"test","path":"/data/value","value":"2"},
                      {"op":"remove","path":"/data/none"}])")
                .error()
                .code(),
            Code::kInvalid);
}

TEST_F(KubeClient, PagesRawListsAndSelectors) {
  for (int i = 0; i < 7; ++i) make(types::kConfigMap, config_map("l" + std::to_string(i), "1"));
  ListOptions options;
  options.label_selector = "suite=kube-client";
  options.limit = 3;
  std::size_t found = 0;
  int pages = 0;
  do {
    const auto page = client->list(types::kConfigMap, "default", options);
    ASSERT_TRUE(page.ok()) << page.error().to_string();
    found += page->items.size();
    options.continue_token = page->continue_token;
    ++pages;
  } while (!options.continue_token.empty());
  EXPECT_GE(found, 7u);
  EXPECT_GE(pages, 3);
  ListOptions raw;
  raw.raw = true;
  raw.field_selector = "metadata.name=l3";
  const auto one = client->list(types::kConfigMap, "default", raw);
  ASSERT_TRUE(one.ok());
  ASSERT_EQ(one->raw_items.size(), 1u);
  EXPECT_EQ(name_of(json::parse(one->raw_items[0]).value()), "l3");
  EXPECT_FALSE(one->resource_version.empty());
}

TEST_F(KubeClient, InformerOfPods) {
  InformerConfig config;
  config.namespaces = {"default"};
  config.label_selector = "suite=kube-client";
  Informer<Pod> pods(*client, executor, metrics, config);
  std::atomic<int> deleted{0};
  pods.on_change([&](const Change<Pod>& change) { deleted += change.after ? 0 : 1; });
  make(types::kPod, pod("before"));
  pods.start();
  ASSERT_TRUE(pods.wait_for_sync(executor.now() + kPatience));
  ASSERT_NE(pods.store().get({"default", "before"}), nullptr);
  const Value created = make(types::kPod, pod("after"));
  ASSERT_TRUE(
      wait_for([&] { return pods.store().has_seen(resource_version_of(created), "default"); }));
  const auto seen = pods.store().get({"default", "after"});
  ASSERT_NE(seen, nullptr);
  EXPECT_EQ(seen->meta.uid, uid_of(created));
  EXPECT_EQ(seen->scheduler_name, "rubato");
  EXPECT_EQ(amount_of(seen->requests, "cpu"), 1500);
  EXPECT_EQ(amount_of(seen->requests, "example.com/gpu"), 2);
  EXPECT_EQ(seen->phase, PodPhase::kPending);
  // Real bytes, both decoders.
  const auto slow = Pod::decode(created);
  ASSERT_TRUE(slow.ok());
  EXPECT_TRUE(slow->meta == seen->meta);
  EXPECT_TRUE(slow->tolerations == seen->tolerations);

  const Value binding =
      Value::object({{"apiVersion", "v1"},
                     {"kind", "Binding"},
                     {"metadata", Value::object({{"name", "after"}, {"namespace", "default"}})},
                     {"target", Value::object({{"kind", "Node"}, {"name", "n1"}})}});
  WriteOptions options;
  options.subresource = "binding";
  ASSERT_TRUE(client->create(types::kPod, "default", binding, options).ok());
  ASSERT_TRUE(wait_for([&] { return pods.store().get({"default", "after"})->node_name == "n1"; }));
  for (const char* name : {"before", "after"})
    ASSERT_TRUE(client->remove(types::kPod, {"default", name}, now()).ok());
  ASSERT_TRUE(wait_for([&] { return deleted == 2; }));
  EXPECT_EQ(pods.store().size(), 0u);
}

TEST_F(KubeClient, WatchesEnd) {
  WatchOptions options;
  options.timeout = std::chrono::seconds(1);
  const auto now = client->list(types::kConfigMap, "default", {});
  EXPECT_TRUE(now.ok()) << now.error().to_string();
  if (now.ok()) options.resource_version = now->resource_version;
  auto watch = client->watch(types::kConfigMap, "default", options);
  ASSERT_TRUE(watch.ok()) << watch.error().to_string();
  Code end = Code::kTimeout;
  for (int i = 0; i < 1000 && end != Code::kUnavailable; ++i) {
    const auto next = (*watch)->next(executor.now() + kPatience);
    if (!next.ok()) {
      end = next.error().code();
      ASSERT_EQ(end, Code::kUnavailable) << next.error().to_string();
    }
  }
}

TEST_F(KubeClient, LeaderElectionHandsOver) {
  (void)client->remove(types::kLease, {"default", "elector"}, now());
  const auto config = [](const std::string& name) {
    LeaderElectionConfig result;
    result.lease = Key{"default", "elector"};
    result.identity = name;
    result.address = name + ":1";
    result.timing = LeaseTiming{60s, 40s, 200ms};  // long: nobody loses it by the machine's load
    return result;
  };
  LeaderElector a(*client, executor, metrics, config("a"));
  LeaderElector b(*client, executor, metrics, config("b"));
  a.start({});
  ASSERT_TRUE(a.wait_until_leader(executor.now() + kPatience));
  EXPECT_EQ(a.epoch(), 1);
  b.start({});
  ASSERT_TRUE(wait_for([&] { return b.observed().holder == "a"; }));
  EXPECT_EQ(b.observed().address, "a:1");
  // Deleted under its leader: written again in the same epoch.
  ASSERT_TRUE(client->remove(types::kLease, {"default", "elector"}, now()).ok());
  ASSERT_TRUE(wait_for([&] {
    const auto lease = client->get(types::kLease, {"default", "elector"}, "");
    return lease.ok();
  }));
  EXPECT_TRUE(a.is_leader());
  EXPECT_EQ(a.epoch(), 1);
  ASSERT_TRUE(a.release().ok());
  ASSERT_TRUE(b.wait_until_leader(executor.now() + kPatience));
  EXPECT_EQ(b.epoch(), 2);
  EXPECT_TRUE(b.release().ok());
}

TEST_F(KubeClient, Events) {
  const Value about = make(types::kConfigMap, config_map("e", "1"));
  EventRecorderConfig config;
  config.instance = "suite-0";
  EventRecorder recorder(*client, executor, metrics, config);
  recorder.start();
  const EventText text{EventLevel::kWarning, "Tried", "Trying", "a note " + uid_of(about)};
  recorder.emit(reference_to(about), text);
  recorder.emit(reference_to(about), text);
  ASSERT_TRUE(recorder.flush(executor.now() + kPatience));
  const auto list = client->list(types::kEvent, "default", {});
  ASSERT_TRUE(list.ok());
  int found = 0;
  for (const auto& event : list->items) {
    if (event["note"].string_or("") != text.note) continue;
    ++found;
    EXPECT_EQ(event["series"]["count"].int_or(0), 2);
    EXPECT_EQ(event["reportingController"].string_or(""), "rubato.dev/operator");
  }
  EXPECT_EQ(found, 1);
}

}  // namespace
}  // namespace rubato::kube
