// kube through a fault proxy: RUBATO_FAULT_KUBECONFIG goes through it, and
// RUBATO_DIRECT_KUBECONFIG past it; test_client_faults.py starts both and switches the faults. What
// is asked is the same under every fault: a cache becomes equal again, two never lead at once,
// nothing is said twice, and a write is done once however often it had to be tried.
// RUBATO_FAULT_NAMESPACE: where to play.
#include "kube/errors.h"
#include "kube/events.h"
#include "kube/informer.h"
#include "kube/leader_election.h"
#include "kube/objects/object.h"
#include "kube/rest_client.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include <gtest/gtest.h>

namespace rubato::kube {
namespace {

using json::Value;

constexpr auto kTrouble = 10s;    // how long each story goes on
constexpr auto kRecovery = 60s;   // bound of all waits
constexpr int kWatchSeconds = 6;  // so that a swallowed watch is missed within the story
constexpr auto kTiming = LeaseTiming{3s, 2s, 200ms};

std::string env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

struct ClientFault : ::testing::Test {
  void SetUp() override {
    if (env("RUBATO_FAULT_KUBECONFIG").empty()) GTEST_SKIP() << "no RUBATO_FAULT_KUBECONFIG";
    subject = open(env("RUBATO_FAULT_KUBECONFIG"), std::chrono::seconds(3));
    direct = open(env("RUBATO_DIRECT_KUBECONFIG"), std::chrono::seconds(30));
  }
  std::unique_ptr<Client> open(const std::string& path, std::chrono::seconds timeout) {
    RestOptions options;
    options.limits.timeout = timeout;
    options.watch_length = std::chrono::seconds(kWatchSeconds);
    auto client = connect({.path = path}, executor, metrics, options);
    CHECK(client.ok());
    return std::move(client).value();
  }
  bool wait_for(const std::function<bool()>& done) {
    const MonoTime limit = executor.now() + kRecovery;
    while (!done()) {
      if (executor.now() > limit) return false;
      executor.sleep_for(20ms);
    }
    return true;
  }
  Value config_map(const std::string& name, const std::string& value) const {
    return Value::object(
        {{"apiVersion", "v1"},
         {"kind", "ConfigMap"},
         {"metadata", Value::object({{"name", name},
                                     {"namespace", ns},
                                     {"labels", Value::object({{"suite", "fault"}})}})},
         {"data", Value::object({{"value", value}, {"filler", std::string(300, 'x')}})}});
  }
  ThreadExecutor executor;
  Metrics metrics;
  std::string ns = env("RUBATO_FAULT_NAMESPACE");
  std::unique_ptr<Client> subject;
  std::unique_ptr<Client> direct;
};

struct ConfigMapObject {
  Meta meta;
  std::string value;
  static ResourceType type() { return types::kConfigMap; }
  static Result<ConfigMapObject> decode(const Value& object) {
    TRY(Object generic, Object::decode(object));
    return ConfigMapObject{std::move(generic.meta), object["data"]["value"].string_or("")};
  }
};

TEST_F(ClientFault, InformerConverges) {
  InformerConfig config;
  config.namespaces = {ns};
  config.label_selector = "suite=fault";
  Informer<ConfigMapObject> cache(*subject, executor, metrics, config);
  cache.start();
  const MonoTime end = executor.now() + kTrouble;
  int round = 0;
  for (; executor.now() < end; ++round) {
    const std::string name = "c" + std::to_string(round % 7);
    if (round % 5 == 4) {
      (void)direct->remove(types::kConfigMap, {ns, name});
    } else {
      const auto made =
          direct->create(types::kConfigMap, ns, config_map(name, std::to_string(round)));
      const Value patch =
          Value::object({{"data", Value::object({{"value", std::to_string(round)}})}});
      if (!made.ok()) {
        const auto changed = direct->patch(types::kConfigMap, {ns, name}, PatchType::kMerge, patch);
        ASSERT_TRUE(changed.ok()) << changed.error().to_string();
      }
    }
    executor.sleep_for(100ms);
  }
  ASSERT_TRUE(cache.wait_for_sync(executor.now() + kRecovery));
  ListOptions options;
  options.label_selector = config.label_selector;
  const auto truth = direct->list(types::kConfigMap, ns, options);
  ASSERT_TRUE(truth.ok());
  const MonoTime quiet = executor.now();
  EXPECT_TRUE(wait_for([&] {
    if (cache.store().size() != truth->items.size()) return false;
    return std::all_of(truth->items.begin(), truth->items.end(), [&](const Value& item) {
      const auto seen = cache.store().get(key_of(item));
      return seen && seen->meta.resource_version == resource_version_of(item);
    });
  })) << "after "
      << round << " changes the cache differs";
  std::printf("equal again after %.2f s\n",
              std::chrono::duration<double>(executor.now() - quiet).count());
}

// A replica that is started again when it has lost its Lease, as a kubelet would.
struct Replica {
  Replica(Client& client, Executor& executor, Metrics& metrics, std::string ns, std::string name)
      : client_(client),
        executor_(executor),
        metrics_(metrics),
        ns_(std::move(ns)),
        name_(std::move(name)) {
    start();
  }
  void start() {
    LeaderElectionConfig config;
    config.lease = Key{ns_, "elector"};
    config.identity = name_ + "_" + std::to_string(++lives_);
    config.timing = kTiming;
    elector = std::make_unique<LeaderElector>(client_, executor_, metrics_, config);
    elector->start({});
  }
  Client& client_;
  Executor& executor_;
  Metrics& metrics_;
  std::string ns_, name_;
  int lives_ = 0;
  std::unique_ptr<LeaderElector> elector;
};

TEST_F(ClientFault, TwoNeverLead) {
  const auto lease_client = open(env("RUBATO_FAULT_KUBECONFIG"), std::chrono::seconds(1));
  Replica a(*lease_client, executor, metrics, ns, "a");
  Replica b(*lease_client, executor, metrics, ns, "b");
  const MonoTime end = executor.now() + kTrouble;
  std::int64_t newest = 0;
  const auto look = [&] {
    const bool a_leads = a.elector->is_leader();
    const bool b_leads = b.elector->is_leader();
    // Asked twice: the first answer may be old by the time the second is there.
    EXPECT_FALSE(a_leads && b_leads && a.elector->is_leader()) << "two lead";
    for (Replica* replica : {&a, &b}) {
      if (replica->elector->is_leader()) {
        const std::int64_t epoch = replica->elector->epoch();
        EXPECT_GE(epoch, newest) << "an older epoch leads";
        newest = std::max(newest, epoch);
      } else if (replica->elector->is_lost()) {
        replica->start();
      }
    }
    return a_leads || b_leads;
  };
  while (executor.now() < end) {
    look();
    executor.sleep_for(5ms);
  }
  EXPECT_TRUE(wait_for(look)) << "nobody leads";
  std::printf("epoch %lld after %d and %d lives\n", static_cast<long long>(newest), a.lives_,
              b.lives_);
}

TEST_F(ClientFault, EventsArriveOnce) {
  EventRecorderConfig config;
  config.instance = "suite-0";
  EventRecorder recorder(*subject, executor, metrics, config);
  recorder.start();
  const auto about = direct->create(types::kConfigMap, ns, config_map("about", "1"));
  ASSERT_TRUE(about.ok()) << about.error().to_string();
  constexpr int kEvents = 8;
  for (int i = 0; i < kEvents; ++i) {
    recorder.emit(reference_to(*about),
                  {EventLevel::kNormal, "Tried", "Trying", "note " + std::to_string(i)});
    executor.sleep_for(500ms);
  }
  EXPECT_TRUE(recorder.flush(executor.now() + kRecovery));
  const auto list = direct->list(types::kEvent, ns, {});
  ASSERT_TRUE(list.ok());
  std::multiset<std::string> notes;
  for (const auto& event : list->items) {
    if (event["regarding"]["name"].string_or("") == "about")
      notes.insert(event["note"].string_or(""));
  }
  EXPECT_EQ(notes.size(), static_cast<std::size_t>(kEvents));
  for (int i = 0; i < kEvents; ++i) EXPECT_EQ(notes.count("note " + std::to_string(i)), 1u) << i;
}

// A counter by compare-and-swap: each step is looked up when its answer was lost.
TEST_F(ClientFault, WritesAreDoneOnce) {
  const Key key{ns, "counter"};
  int tries = 0;
  const auto until = [&](const std::function<Status()>& attempt) {
    return wait_for([&] {
      ++tries;
      return attempt().ok();
    });
  };
  ASSERT_TRUE(until([&]() -> Status {
    const auto made = subject->create(types::kConfigMap, ns, config_map("counter", "0"));
    if (!made.ok() && made.error().code() != Code::kAlreadyExists) return made.error();
    return ok();
  }));
  const MonoTime end = executor.now() + kTrouble / 2;
  int count = 0;
  for (; executor.now() < end; ++count) {
    const std::string from = std::to_string(count), to = std::to_string(count + 1);
    const Value patch =
        json::parse(R"([{"op":"test","path":"/data/value","value":")" + from +
                    R"("},{"op":"replace","path":"/data/value","value":")" + to + R"("}])")
            .value();
    ASSERT_TRUE(until([&]() -> Status {
      const auto written = subject->patch(types::kConfigMap, key, PatchType::kJson, patch);
      if (written.ok()) return ok();
      const auto live = subject->get(types::kConfigMap, key);
      if (live.ok() && (*live)["data"]["value"].string_or("") == to) return ok();
      return written.error();
    }));
    const auto live = direct->get(types::kConfigMap, key);
    ASSERT_TRUE(live.ok());
    ASSERT_EQ((*live)["data"]["value"].string_or(""), to);
    executor.sleep_for(50ms);
  }
  ASSERT_TRUE(until([&]() -> Status {
    const Status gone = subject->remove(types::kConfigMap, key);
    return !gone.ok() && gone.error().code() == Code::kNotFound ? ok() : gone;
  }));
  std::printf("%d writes in %d tries\n", count + 2, tries);
}

}  // namespace
}  // namespace rubato::kube
