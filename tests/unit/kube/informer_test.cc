#include "kube/informer.h"

#include "kube/fenced_client.h"
#include "kube/objects/object.h"
#include "sim_fixture.h"

#include <gtest/gtest.h>

namespace rubato::kube {
namespace {

InformerConfig config_maps() {
  InformerConfig config;
  config.type = types::kConfigMap;
  config.namespaces = {"default"};
  return config;
}

std::string value_of(const Object& object) { return object.value["data"]["value"].string_or(""); }

using Contents = std::map<std::string, std::string>;

Contents contents(const Store<Object>& store) {
  Contents result;
  for (const auto& object : store.list()) result[object->meta.name] = value_of(*object);
  return result;
}

Contents contents(MemoryServer& server) {
  Contents result;
  const auto listing = server.list(types::kConfigMap, "default", {});
  for (const auto& item : listing.value().items)
    result[name_of(item)] = item["data"]["value"].string_or("");
  return result;
}

TEST(Informer, ListsThenFollows) {
  SimWorld world(1);
  world.make_config_map("a", 1);
  Informer<Object> informer(world.client, world.home, world.metrics, config_maps());
  std::vector<std::string> heard;
  informer.on_change([&](const Change<Object>& change) {
    heard.push_back(change.key().name + (change.initial ? " initial" : "") +
                    (change.before ? " " + value_of(*change.before) : " -") + ">" +
                    (change.after ? value_of(*change.after) : "-"));
  });
  EXPECT_FALSE(informer.has_synced());
  informer.start();
  ASSERT_TRUE(world.sim.run_until([&] { return informer.has_synced(); }, 10s));
  world.set_config_map("a", 2);
  const json::Value b = world.make_config_map("b", 7);
  world.remove_config_map("a");
  ASSERT_TRUE(world.sim.run_until([&] { return heard.size() >= 4; }, 10s));
  EXPECT_EQ(heard, (std::vector<std::string>{"a initial ->1", "a 1>2", "b ->7", "a 2>-"}));
  EXPECT_TRUE(informer.store().has_seen(resource_version_of(b), "default"));
  EXPECT_EQ(contents(informer.store()), contents(world.server));
}

TEST(Informer, ShowsOwnWritesAtOnceAndNeverThePastAgain) {
  SimWorld world(1);
  world.make_config_map("a", 1);
  Informer<Object> informer(world.client, world.home, world.metrics, config_maps());
  std::vector<std::string> heard;
  informer.on_change([&](const Change<Object>& change) {
    heard.push_back(change.after ? value_of(*change.after) : "-");
  });
  informer.start();
  ASSERT_TRUE(world.sim.run_until([&] { return informer.has_synced(); }, 10s));
  const json::Value second = world.set_config_map("a", 2);
  const json::Value third = world.set_config_map("a", 3);
  informer.wrote(third);  // before the watch has told of any
  informer.wrote(second);
  EXPECT_EQ(contents(informer.store()), (Contents{{"a", "3"}}));
  const json::Value fourth = world.set_config_map("a", 4);
  ASSERT_TRUE(world.sim.run_until([&] { return heard.size() >= 3; }, 10s));
  EXPECT_EQ(heard, (std::vector<std::string>{"1", "3", "4"}));
  EXPECT_EQ(contents(informer.store()), (Contents{{"a", "4"}}));
  // An answer that comes after the deletion was seen brings nothing back.
  world.remove_config_map("a");
  ASSERT_TRUE(world.sim.run_until([&] { return heard.size() >= 4; }, 10s));
  informer.wrote(fourth);
  EXPECT_TRUE(contents(informer.store()).empty());
}

struct CountedObject : Object {
  static inline int decoded = 0;
  static Result<CountedObject> decode(const json::Value& value) {
    ++decoded;
    TRY(Object object, Object::decode(value));
    return CountedObject{std::move(object)};
  }
};

// An own write is decoded when it is made, and neither by its event nor what the watch tells of the
// time before it.
TEST(Informer, DecodesWhatWasWrittenOnce) {
  SimWorld world(1);
  world.make_config_map("a", 1);
  Informer<CountedObject> informer(world.client, world.home, world.metrics, config_maps());
  std::vector<std::string> heard;
  informer.on_change(
      [&](const auto& change) { heard.push_back(change.after ? value_of(*change.after) : "-"); });
  informer.start();
  ASSERT_TRUE(world.sim.run_until([&] { return informer.has_synced(); }, 10s));
  CountedObject::decoded = 0;
  world.set_config_map("a", 2);
  informer.wrote(world.set_config_map("a", 3));
  ASSERT_TRUE(world.sim.run_until([&] { return heard.size() >= 2; }, 10s));
  EXPECT_EQ(CountedObject::decoded, 1);
  world.set_config_map("a", 4);  // somebody else
  world.remove_config_map("a");
  ASSERT_TRUE(world.sim.run_until([&] { return heard.size() >= 4; }, 10s));
  EXPECT_EQ(CountedObject::decoded, 3);
  EXPECT_EQ(heard, (std::vector<std::string>{"1", "3", "4", "-"}));
}

// The watch shows an own write as what was there before, so what it replaced is told at once.
TEST(Informer, TellsWhatAnAnswerReplaced) {
  SimWorld world(1);
  world.make_config_map("a", 1);
  Informer<Object> informer(world.client, world.home, world.metrics, config_maps());
  std::vector<std::string> told;
  informer.on_written([&](const Change<Object>& change) {
    told.push_back(value_of(*change.before) + ">" + value_of(*change.after));
  });
  informer.start();
  ASSERT_TRUE(world.sim.run_until([&] { return informer.has_synced(); }, 10s));
  const json::Value second = world.set_config_map("a", 2);
  const json::Value third = world.set_config_map("a", 3);
  informer.wrote(third);
  informer.wrote(second);
  EXPECT_EQ(told, (std::vector<std::string>{"1>3"}));
}

// Lists take a moment, as they do on a wire.
class SlowLists : public FencedClient {
 public:
  static constexpr auto kTime = 50ms;
  explicit SlowLists(SimWorld& world)
      : FencedClient(
            world.client, world.home, [] { return MonoTime::max(); }, 0s),
        executor_(world.home) {}
  Result<ObjectList> list(const ResourceType& type, const std::string& ns,
                          const ListOptions& options) override {
    executor_.sleep_for(kTime);
    return FencedClient::list(type, ns, options);
  }

 private:
  Executor& executor_;
};

// The server forgets what it knew of the versions that watches have.
void go_back_after(SimWorld& world, int value) {
  ObjectStore::Backup backup;
  world.server.visit([&](const ObjectStore& store) { backup = store.backup(); });
  world.set_config_map("a", value);
  world.server.go_back_to(backup);
}

// Whoever decides waits: after a backup was restored, say, what it holds is of another time.
TEST(Informer, IsNotInSyncFromAVersionThatExpiredUntilTheNextList) {
  SimWorld world(1);
  world.make_config_map("a", 1);
  SlowLists client(world);
  Informer<Object> informer(client, world.home, world.metrics, config_maps());
  informer.start();
  ASSERT_TRUE(world.sim.run_until([&] { return informer.has_synced(); }, 10s));
  go_back_after(world, 2);
  EXPECT_TRUE(world.sim.run_until([&] { return !informer.has_synced(); }, 10s));
  EXPECT_TRUE(world.sim.run_until([&] { return informer.has_synced(); }, 10s));
  EXPECT_EQ(contents(informer.store()), (Contents{{"a", "1"}}));
}

// Ten informers whose versions expire now and then would hardly ever be in sync together, if each
// waited before it lists again.
TEST(Informer, WhereVersionsKeepExpiringTheListFollowsAtOnceAndTheWatchWaits) {
  SimWorld world(1);
  world.make_config_map("a", 1);
  SlowLists client(world);
  Informer<Object> informer(client, world.home, world.metrics, config_maps());
  informer.start();
  ASSERT_TRUE(world.sim.run_until([&] { return informer.has_synced(); }, 10s));
  const MonoTime began = world.sim.now();
  Duration out_of_sync = 0s;
  for (int times = 0; times < 6; ++times) {
    go_back_after(world, 2 + times);
    ASSERT_TRUE(world.sim.run_until([&] { return !informer.has_synced(); }, 20s));
    const MonoTime since = world.sim.now();
    ASSERT_TRUE(world.sim.run_until([&] { return informer.has_synced(); }, 20s));
    out_of_sync += world.sim.now() - since;
  }
  EXPECT_LT(out_of_sync, 7 * SlowLists::kTime);
  EXPECT_GT(world.sim.now() - began, 5s);  // so the server is not asked without end
}

// Meets an event that it cannot read, at each watch from before that one.
class StuckWatches : public FencedClient {
 public:
  explicit StuckWatches(SimWorld& world)
      : FencedClient(world.client, world.home, [] { return MonoTime::max(); }, 0s) {}
  Result<std::unique_ptr<Watch>> watch(const ResourceType& type, const std::string& ns,
                                       const WatchOptions& options) override {
    if (options.resource_version != stuck_at) return FencedClient::watch(type, ns, options);
    return std::unique_ptr<Watch>(std::make_unique<Stuck>());
  }
  std::string stuck_at;

 private:
  struct Stuck : Watch {
    Result<WatchEvent> next(MonoTime) override {
      return Error(Code::kInternal, "a watch event is larger than any object may be");
    }
    void stop() override {}
  };
};

TEST(Informer, ListsAnewBehindAnEventThatItCannotRead) {
  SimWorld world(1);
  const json::Value a = world.make_config_map("a", 1);
  StuckWatches client(world);
  client.stuck_at = resource_version_of(a);
  Informer<Object> informer(client, world.home, world.metrics, config_maps());
  informer.start();
  ASSERT_TRUE(world.sim.run_until([&] { return informer.has_synced(); }, 10s));
  world.set_config_map("a", 2);
  world.sim.run_for(10s);
  EXPECT_EQ(contents(informer.store()), (Contents{{"a", "2"}}));
}

// The event of the write is lost with the watch: the list that follows shows what is there already.
TEST(Informer, HandlersHearOfOwnWritesThatAListShows) {
  Store<Object> store;
  const auto state = [](const std::string& version) {
    Object object;
    object.meta.name = "a";
    object.meta.uid = "u";
    object.meta.resource_version = version;
    return std::make_shared<const Object>(std::move(object));
  };
  EXPECT_EQ(store.replace({state("1")}, "1").size(), 1u);
  store.put_written(state("2"));
  EXPECT_EQ(store.replace({state("2")}, "2").size(), 1u);
  EXPECT_EQ(store.replace({state("2")}, "3").size(), 0u);
}

TEST(Informer, BookmarksMoveTheVersion) {
  SimWorld world(1);
  Informer<Object> informer(world.client, world.home, world.metrics, config_maps());
  informer.start();
  ASSERT_TRUE(world.sim.run_until([&] { return informer.has_synced(); }, 10s));
  // A write to another type: only a bookmark can tell of it.
  const json::Value secret = json::Value::object(
      {{"apiVersion", "v1"},
       {"kind", "Secret"},
       {"metadata", json::Value::object({{"name", "s"}, {"namespace", "default"}})}});
  const auto written = world.server.create(types::kSecret, "default", secret);
  ASSERT_TRUE(written.ok());
  const std::string version = resource_version_of(written.value().object);
  EXPECT_FALSE(informer.store().has_seen(version, "default"));
  EXPECT_TRUE(
      world.sim.run_until([&] { return informer.store().has_seen(version, "default"); }, 300s));
}

TEST(Informer, IndexesFollowChanges) {
  SimWorld world(1);
  Informer<Object> informer(world.client, world.home, world.metrics, config_maps());
  informer.store().add_index(
      "value", [](const Object& object) { return std::vector<std::string>{value_of(object)}; });
  informer.start();
  world.make_config_map("a", 1);
  world.make_config_map("b", 1);
  ASSERT_TRUE(world.sim.run_until([&] { return informer.store().size() == 2; }, 10s));
  EXPECT_EQ(informer.store().by_index("value", "1").size(), 2u);
  world.set_config_map("a", 2);
  ASSERT_TRUE(world.sim.run_until(
      [&] { return informer.store().by_index("value", "2").size() == 1; }, 10s));
  EXPECT_EQ(informer.store().by_index("value", "1").size(), 1u);
  world.remove_config_map("b");
  ASSERT_TRUE(world.sim.run_until([&] { return informer.store().size() == 1; }, 10s));
  EXPECT_TRUE(informer.store().by_index("value", "1").empty());
}

// Cut off for longer than the server remembers: 410, a new list, and deletions are told.
TEST(Informer, RelistsWhenTheHistoryIsGone) {
  ServerOptions options;
  options.history_events = 4;
  SimWorld world(1, options);
  world.make_config_map("gone", 1);
  Informer<Object> informer(world.client, world.home, world.metrics, config_maps());
  std::vector<std::string> deleted;
  informer.on_change([&](const Change<Object>& change) {
    if (!change.after) deleted.push_back(change.key().name);
  });
  informer.start();
  ASSERT_TRUE(world.sim.run_until([&] { return informer.has_synced(); }, 10s));
  world.client.disconnect();
  world.sim.run_for(5s);
  world.remove_config_map("gone");
  for (int i = 0; i < 20; ++i) world.make_config_map("m" + std::to_string(i), i);
  world.client.reconnect();
  ASSERT_TRUE(world.sim.run_until([&] { return informer.store().size() == 20; }, 300s));
  EXPECT_EQ(deleted, std::vector<std::string>{"gone"});
  EXPECT_EQ(contents(informer.store()), contents(world.server));
}

// Random writes and random faults: the copy ends equal, and the stream of changes, replayed, gives
// the same copy.
TEST(InformerProperty, ConvergesUnderFaults) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    ServerOptions options;
    options.history_events = 32;
    SimWorld world(seed, options);
    InformerConfig config = config_maps();
    config.seed = seed;
    Informer<Object> informer(world.client, world.home, world.metrics, config);
    Contents replayed;
    informer.on_change([&](const Change<Object>& change) {
      const std::string name = change.key().name;
      if (change.before) {
        EXPECT_TRUE(replayed.contains(name)) << "seed " << seed;
      } else {
        EXPECT_FALSE(replayed.contains(name)) << "seed " << seed;
      }
      if (change.after) {
        replayed[name] = value_of(*change.after);
      } else {
        replayed.erase(name);
      }
    });
    informer.start();
    world.faults.rate = 0.05;
    Rng rng(seed);
    Contents truth;
    for (int step = 0; step < 300; ++step) {
      const std::string name = "m" + std::to_string(rng.below(8));
      if (!truth.contains(name)) {
        world.make_config_map(name, step);
        truth[name] = std::to_string(step);
      } else if (rng.chance(0.3)) {
        world.remove_config_map(name);
        truth.erase(name);
      } else {
        world.set_config_map(name, step);
        truth[name] = std::to_string(step);
      }
      if (rng.chance(0.2)) world.sim.run_for(std::chrono::seconds(rng.below(5)));
    }
    world.faults.rate = 0;
    const auto equal = [&] { return informer.has_synced() && contents(informer.store()) == truth; };
    ASSERT_TRUE(world.sim.run_until(equal, std::chrono::minutes(30))) << "seed " << seed;
    EXPECT_EQ(replayed, truth) << "seed " << seed;
  }
}

TEST(Informer, StopsWhileItWaits) {
  SimWorld world(1);
  auto informer =
      std::make_unique<Informer<Object>>(world.client, world.home, world.metrics, config_maps());
  informer->start();
  ASSERT_TRUE(world.sim.run_until([&] { return informer->has_synced(); }, 10s));
  bool stopped = false;
  Task task = world.home.spawn("stop", [&](std::stop_token) {
    informer->stop();
    stopped = true;
  });
  EXPECT_TRUE(world.sim.run_until([&] { return stopped; }, 1s));
  EXPECT_TRUE(informer->has_synced());
}

json::Value map_in(const std::string& ns, const std::string& name, const std::string& owner) {
  return json::Value::object(
      {{"apiVersion", "v1"},
       {"kind", "ConfigMap"},
       {"metadata", json::Value::object({{"name", name},
                                         {"namespace", ns},
                                         {"labels", json::Value::object({{"owner", owner}})}})},
       {"data", json::Value::object({{"value", ns}})}});
}

// Of three namespaces two are watched: each by itself, and a relist of one leaves the other alone.
TEST(Informer, OfSomeNamespaces) {
  SimWorld world(1);
  for (const char* ns : {"a", "b", "c"}) {
    ASSERT_TRUE(
        world.server
            .create(kube::types::kNamespace, "",
                    json::Value::object({{"apiVersion", "v1"},
                                         {"kind", "Namespace"},
                                         {"metadata", json::Value::object({{"name", ns}})}}))
            .ok());
    ASSERT_TRUE(world.server.create(types::kConfigMap, ns, map_in(ns, "first", "x")).ok());
  }
  InformerConfig config = config_maps();
  config.namespaces = {"a", "c"};
  Informer<Object> informer(world.client, world.home, world.metrics, config);
  int gone = 0;
  informer.on_change([&](const Change<Object>& change) { gone += change.after == nullptr; });
  informer.start();
  ASSERT_TRUE(world.sim.run_until([&] { return informer.has_synced(); }, 10s));
  EXPECT_EQ(informer.store().size(), 2u);
  EXPECT_FALSE(informer.store().get({"b", "first"}));
  const auto made = world.server.create(types::kConfigMap, "c", map_in("c", "second", "x"));
  const std::string version = resource_version_of(made->object);
  ASSERT_TRUE(world.sim.run_until([&] { return informer.store().has_seen(version, "c"); }, 10s));
  EXPECT_FALSE(informer.store().has_seen(version, "a")) << "nothing has been said of it";
  EXPECT_EQ(informer.store().size(), 3u);
  EXPECT_EQ(gone, 0);
}

// Those of one namespace may not be read, and a watch that is open ends.
struct DeniedNamespace : FaultHook {
  std::string ns;
  std::optional<Error> before(const Operation& operation) override {
    if (ns.empty() || operation.key.ns != ns) return std::nullopt;
    return Error(Code::kDenied, "forbidden").set_reason("Forbidden");
  }
  std::optional<Error> after(const Operation& operation) override {
    if (ns.empty() || operation.key.ns != ns) return std::nullopt;
    return Error(Code::kUnavailable, "the watch has ended");
  }
};

TEST(Informer, ANamespaceThatMayNotBeListedIsPassedOverUntilItMay) {
  SimWorld world(1);
  for (const char* ns : {"a", "b"}) {
    const json::Value object =
        json::Value::object({{"metadata", json::Value::object({{"name", ns}})}});
    ASSERT_TRUE(world.server.create(types::kNamespace, "", object).ok());
    ASSERT_TRUE(world.server.create(types::kConfigMap, ns, map_in(ns, "first", "x")).ok());
  }
  DeniedNamespace rules;
  rules.ns = "b";
  MemoryClient client(world.server, world.home, &rules);
  InformerConfig config = config_maps();
  config.namespaces = {"a", "b"};
  Informer<Object> waits(client, world.home, world.metrics, config);
  config.while_denied = WhileDenied::kForget;
  Informer<Object> informer(client, world.home, world.metrics, config);
  config.while_denied = WhileDenied::kKeep;
  Informer<Object> keeps(client, world.home, world.metrics, config);
  for (auto* each : {&waits, &informer, &keeps}) each->start();
  world.sim.run_for(kDeniedPatience - 1s);
  EXPECT_FALSE(informer.has_synced()) << "the server may not know its rules yet";
  ASSERT_TRUE(world.sim.run_until([&] { return informer.has_synced(); }, 10s));
  EXPECT_FALSE(waits.has_synced());
  EXPECT_EQ(informer.denied(), std::set<std::string>{"b"});
  EXPECT_EQ(informer.store().size(), 1u);
  rules.ns = "";
  ASSERT_TRUE(world.sim.run_until([&] { return informer.denied().empty(); }, 60s));
  EXPECT_EQ(informer.store().size(), 2u);
  rules.ns = "b";
  (void)world.server.create(types::kConfigMap, "b", map_in("b", "second", "x"));
  ASSERT_TRUE(world.sim.run_until([&] { return !informer.denied().empty(); }, 120s));
  EXPECT_EQ(informer.store().size(), 1u) << "nothing is known of it any more";
  EXPECT_TRUE(informer.has_synced());
  ASSERT_TRUE(world.sim.run_until([&] { return !keeps.denied().empty(); }, 120s));
  EXPECT_TRUE(keeps.has_synced());
  EXPECT_TRUE(keeps.store().get({"b", "first"})) << "as it was last seen";
}

// What is not wanted is as if it were not there; it comes and goes with what makes it wanted.
TEST(Informer, KeepsOnlyWhatIsWanted) {
  SimWorld world(1);
  Informer<Object> informer(world.client, world.home, world.metrics, config_maps());
  informer.keep_only(
      [](const Object& object) { return find(object.meta.labels, "owner") == "us"; });
  std::string heard;
  informer.on_change([&](const Change<Object>& change) {
    heard += change.key().name + (change.after ? "+ " : "- ");
  });
  const auto set = [&](const char* name, const char* owner) {
    const kube::Key key{"default", name};
    if (!world.server.get(types::kConfigMap, key).ok())
      return (void)world.server.create(types::kConfigMap, "default",
                                       map_in("default", name, owner));
    const auto patch =
        json::parse(R"({"metadata":{"labels":{"owner":")" + std::string(owner) + R"("}}})");
    (void)world.server.patch(types::kConfigMap, key, PatchType::kMerge, patch.value());
  };
  set("theirs", "them");
  set("ours", "us");
  informer.start();
  ASSERT_TRUE(world.sim.run_until([&] { return informer.has_synced(); }, 10s));
  EXPECT_EQ(heard, "ours+ ");
  set("ours", "them");
  set("ours", "us");
  set("theirs", "us");
  set("new", "them");
  set("last", "us");
  ASSERT_TRUE(world.sim.run_until(
      [&] { return informer.store().get({"default", "last"}) != nullptr; }, 10s));
  EXPECT_EQ(heard, "ours+ ours- ours+ theirs+ last+ ");
  EXPECT_EQ(informer.store().size(), 3u);
}

}  // namespace
}  // namespace rubato::kube
