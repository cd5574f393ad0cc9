// Stories of volumes. Whoever makes volumes, and Kubernetes' controller that binds them, are played
// by the story.
#include "tests/sim/told_stories.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace rubato::sim {
namespace {

using json::Value;

constexpr const char* kSelectedNode = "volume.kubernetes.io/selected-node";
const kube::Key kData{"default", "data"};

Value parsed(const std::string& text) {
  const auto value = json::parse(text);
  CHECK(value.ok());
  return *value;
}

class VolumeStories : public ::testing::Test {
 protected:
  WholeCluster& start(Scenario scenario) {
    cluster_ = std::make_unique<WholeCluster>(std::move(scenario), RunOptions{.listening = true});
    cluster_->start();
    return *cluster_;
  }

  // n0 and n1 with two GPUs each.
  WholeCluster& start_mounting(int min, int max, std::vector<std::string> claims = {"data"}) {
    Scenario scenario;
    scenario.nodes = {{"n0", "fast", 2}, {"n1", "fast", 2}};
    scenario.queues = {{"default", 0}};
    scenario.jobs = {training("mounting", min, max)};
    scenario.jobs[0].claims = std::move(claims);
    return start(std::move(scenario));
  }

  kube::MemoryServer& server() { return cluster_->server(); }
  bool until(const std::function<bool()>& done, Duration limit = kSoon) {
    return cluster_->run_until(done, limit);
  }

  void make(const kube::ResourceType& type, const std::string& ns, const std::string& text) {
    const auto made = server().create(type, ns, parsed(text));
    ASSERT_TRUE(made.ok()) << made.error().message;
  }
  void patch(const kube::ResourceType& type, const kube::Key& key, const std::string& text,
             const std::string& subresource = "") {
    const auto done = server().patch(type, key, kube::PatchType::kMerge, parsed(text),
                                     {.subresource = subresource});
    ASSERT_TRUE(done.ok()) << done.error().message;
  }

  void make_class(const std::string& provisioner = "disk.example") {
    make(kube::types::kStorageClass, "",
         R"({"apiVersion":"storage.k8s.io/v1","kind":"StorageClass","metadata":{"name":"zonal"},
             "provisioner":")" +
             provisioner + R"(","volumeBindingMode":"WaitForFirstConsumer"})");
  }
  void make_claim(const std::string& name = "data", const std::string& mode = "ReadWriteMany",
                  const std::string& owner = "") {
    make(kube::types::kPersistentVolumeClaim, "default",
         fmt::format(R"({{"apiVersion":"v1","kind":"PersistentVolumeClaim",
             "metadata":{{"name":"{}"{}}},"spec":{{"accessModes":["{}"],"storageClassName":"zonal",
             "resources":{{"requests":{{"storage":"1Gi"}}}}}}}})",
                     name, owner, mode));
  }
  // A volume that the nodes reach.
  void make_volume(const std::string& name, const std::vector<std::string>& nodes,
                   const std::string& mode = "ReadWriteMany") {
    std::string terms;
    for (const std::string& node : nodes)
      terms += fmt::format(R"({}{{"matchFields":[{{"key":"metadata.name","operator":"In",
                              "values":["{}"]}}]}})",
                           terms.empty() ? "" : ",", node);
    make(kube::types::kPersistentVolume, "",
         fmt::format(R"({{"apiVersion":"v1","kind":"PersistentVolume","metadata":{{"name":"{}"}},
             "spec":{{"accessModes":["{}"],"capacity":{{"storage":"2Gi"}},"storageClassName":"zonal",
             "hostPath":{{"path":"/v"}},
             "nodeAffinity":{{"required":{{"nodeSelectorTerms":[{}]}}}}}}}})",
                     name, mode, terms));
    patch(kube::types::kPersistentVolume, {"", name}, R"({"status":{"phase":"Available"}})",
          "status");
  }
  // What the volume controller does.
  void bind(const kube::Key& claim, const std::string& volume) {
    patch(kube::types::kPersistentVolumeClaim, claim,
          R"({"spec":{"volumeName":")" + volume + "\"}}");
    patch(kube::types::kPersistentVolumeClaim, claim, R"({"status":{"phase":"Bound"}})", "status");
  }

  std::string selected(const kube::Key& claim = kData) {
    const auto found = server().get(kube::types::kPersistentVolumeClaim, claim);
    return found.ok() ? (*found)["metadata"]["annotations"][kSelectedNode].string_or("") : "";
  }
  void reject(const kube::Key& claim = kData) {
    patch(kube::types::kPersistentVolumeClaim, claim,
          fmt::format(R"({{"metadata":{{"annotations":{{"{}":null}}}}}})", kSelectedNode));
  }

  Value status(const std::string& job = "mounting") {
    const auto found = cluster_->witness().jobs().find("default/" + job);
    return found == cluster_->witness().jobs().end() ? Value() : found->second.object["status"];
  }
  Value condition(const std::string& type, const std::string& job = "mounting") {
    const Value seen = status(job);
    for (const Value& each : seen["conditions"].items())
      if (each["type"].string_or("") == type) return each;
    return {};
  }
  bool waits_for(const std::string& reason, const std::string& job = "mounting") {
    const Value queued = condition("Queued", job);
    return queued["status"].string_or("") == "True" && queued["reason"].string_or("") == reason;
  }
  int held(const std::string& job = "mounting") {
    return std::max(held_on(*cluster_, job, "n0"), 0) + std::max(held_on(*cluster_, job, "n1"), 0);
  }
  std::size_t bound_pods() {
    std::size_t count = 0;
    for (const auto& [name, pod] : cluster_->witness().pods()) count += pod.node.empty() ? 0U : 1U;
    return count;
  }
  bool has_event(const std::string& reason) {
    const auto listed = server().list(kube::types::kEvent, "default", {}, {});
    if (!listed.ok()) return false;
    return std::any_of(listed->items.begin(), listed->items.end(),
                       [&](const Value& event) { return event["reason"].string_or("") == reason; });
  }
  bool trains(std::size_t members, const std::string& job = "mounting") {
    return members_of(*cluster_, job) == members;
  }

  std::unique_ptr<WholeCluster> cluster_;
};

// By a policy, say. It may be lifted: what is wrong now is not wrong for ever.
TEST_F(VolumeStories, AClaimThatMayNotBeChangedIsToldAndTriedAgain) {
  WholeCluster& cluster = start_mounting(1, 1);
  make_class();
  make_claim();
  ASSERT_TRUE(until([&] { return cluster.leader() != nullptr; }));
  cluster.leader()->trouble().refuses =
      [](const kube::Operation& operation) -> std::optional<Error> {
    const bool is_meant =
        operation.verb == kube::Verb::kPatch && operation.type.plural == "persistentvolumeclaims";
    return is_meant ? std::optional(Error(Code::kInvalid, "denied the request")) : std::nullopt;
  };
  EXPECT_TRUE(until([&] { return has_event("FailedCreate"); }, 2 * kSoon));
  EXPECT_EQ(selected(), "");
  cluster.leader()->trouble().refuses = {};
  EXPECT_TRUE(until([&] { return !selected().empty(); }, 4 * kSoon));
}

// Each in turn is said, with nothing allocated, and mended.
TEST_F(VolumeStories, AJobWaitsVisiblyForItsClaimAndTrainsOnceItIsBound) {
  start_mounting(2, 4);
  ASSERT_TRUE(until([&] { return waits_for("ClaimNotFound"); }));
  EXPECT_TRUE(until([&] { return has_event("ClaimNotFound"); }));
  make_claim();
  ASSERT_TRUE(until([&] { return waits_for("StorageClassNotFound"); }));
  make_class();
  ASSERT_TRUE(until([&] { return held() == 4; }));
  ASSERT_TRUE(until([&] { return !selected().empty(); }));
  // Somebody is at work: pods are there, and none is bound; what it waits for is said.
  EXPECT_FALSE(until([&] { return bound_pods() > 0; }, kGang / 2));
  EXPECT_NE(condition("Running")["message"].string_or("").find("until claim data is bound"),
            std::string::npos);
  make_volume("pv", {"n0", "n1"});
  bind(kData, "pv");
  ASSERT_TRUE(until([&] { return trains(4); }, 2 * kSoon));
  EXPECT_TRUE(has_event("VolumeNodeSelected"));
}

TEST_F(VolumeStories, PodsGoWhereTheVolumeThatWasMadeCanBeReached) {
  start_mounting(1, 4);
  make_class();
  make_claim();
  ASSERT_TRUE(until([&] { return !selected().empty(); }));
  const std::string node = selected();
  make_volume("pv", {node});  // zonal: the job was to have GPUs of both nodes
  bind(kData, "pv");
  ASSERT_TRUE(until([&] { return trains(2); }, 2 * kSoon));
  EXPECT_EQ(held_on(*cluster_, "mounting", node), 2);
  EXPECT_FALSE(until([&] { return held() != 2; }, kSoon)) << "it does not grow where it cannot be";
}

TEST_F(VolumeStories, ANodeForWhichNoVolumeCanBeMadeIsAvoided) {
  start_mounting(1, 2);
  make_class();
  make_claim();
  ASSERT_TRUE(until([&] { return !selected().empty(); }));
  const std::string first = selected();
  const std::string other = first == "n0" ? "n1" : "n0";
  reject();
  ASSERT_TRUE(until([&] { return selected() == other; })) << "chosen again: " << selected();
  EXPECT_TRUE(until([&] { return held_on(*cluster_, "mounting", first) == 0; }));
  const Value avoided = status()["avoidedNodes"];
  ASSERT_EQ(avoided.size(), 1u);
  EXPECT_EQ(avoided[0]["node"].string_or(""), first);
  EXPECT_EQ(avoided[0]["reason"].string_or(""), "VolumeRefused");
  EXPECT_TRUE(until([&] { return has_event("VolumeRefused"); }));
  EXPECT_EQ(bound_pods(), 0u);
  // The other one cannot, either: nothing is held, and the first is tried again in a while.
  reject();
  ASSERT_TRUE(until([&] { return held() == 0; }));
  EXPECT_FALSE(until([&] { return !selected().empty(); }, 15s));
  ASSERT_TRUE(until([&] { return !selected().empty(); }, 60s));
  make_volume("pv", {selected()});
  bind(kData, "pv");
  EXPECT_TRUE(until([&] { return trains(2); }, 2 * kSoon));
}

// While it is being made nobody's GPUs wait longer than a gang does.
TEST_F(VolumeStories, GpusAreNotHeldForAVolumeThatIsNeverMade) {
  start_mounting(2, 2);
  make_class();
  make_claim();
  ASSERT_TRUE(until([&] { return held() == 2; }));
  ASSERT_TRUE(until([&] { return held() == 0; }, kGang + kSoon));
  ASSERT_TRUE(until([&] { return waits_for("ClaimNotBound"); }, 60s));
  EXPECT_NE(condition("Queued")["message"].string_or("").find("disk.example"), std::string::npos);
  EXPECT_FALSE(until([&] { return held() > 0; }, 60s));
  make_volume("pv", {"n0", "n1"});
  bind(kData, "pv");
  EXPECT_TRUE(until([&] { return trains(2); }, 2 * kSoon));
}

TEST_F(VolumeStories, AVolumeThatSomebodyMadeIsKeptForTheClaim) {
  start_mounting(1, 4);
  make_class("kubernetes.io/no-provisioner");
  make_claim("data", "ReadWriteOnce");
  ASSERT_TRUE(until([&] { return waits_for("ClaimNotBound"); }));
  make_volume("local-n1", {"n1"}, "ReadWriteOnce");
  const auto kept_for = [&] {
    const auto volume = server().get(kube::types::kPersistentVolume, {"", "local-n1"});
    return (*volume)["spec"]["claimRef"]["name"].string_or("");
  };
  ASSERT_TRUE(until([&] { return kept_for() == "data"; }));
  EXPECT_EQ(bound_pods(), 0u);
  bind(kData, "local-n1");
  ASSERT_TRUE(until([&] { return trains(2); }, 2 * kSoon));
  EXPECT_EQ(held_on(*cluster_, "mounting", "n1"), 2);
  EXPECT_TRUE(has_event("VolumeSelected"));
}

// A job that is for one node grows there; another with the same claim goes there, or waits.
TEST_F(VolumeStories, AReadWriteOnceClaimKeepsItsUsersOnOneNode) {
  Scenario scenario;
  scenario.nodes = {{"n0", "fast", 2}, {"n1", "fast", 4}};
  scenario.queues = {{"default", 0}};
  scenario.jobs = {training("mounting", 1, 8), training("other", 1, 1), training("third", 1, 1)};
  for (JobPlan& job : scenario.jobs) job.claims = {"data"};
  start(std::move(scenario));
  make_class();
  make_volume("pv", {"n0", "n1"}, "ReadWriteOnce");
  make_claim("data", "ReadWriteOnce");
  bind(kData, "pv");
  const auto nodes_used = [&] {
    std::set<std::string> nodes;
    for (const auto& [name, pod] : cluster_->witness().pods())
      if (!pod.node.empty() && !pod.finished) nodes.insert(pod.node);
    return nodes;
  };
  EXPECT_FALSE(until([&] { return nodes_used().size() > 1; }, 60s));
  EXPECT_EQ(nodes_used().size(), 1u);
  EXPECT_TRUE(trains(1, "other") || held("other") == 0);
}

// Claims that come and go with their pods: each for its own node.
TEST_F(VolumeStories, AnEphemeralVolumeIsMadeForTheNodeOfItsPod) {
  Scenario scenario;
  scenario.nodes = {{"n0", "fast", 1}, {"n1", "fast", 1}};
  scenario.queues = {{"default", 0}};
  scenario.jobs = {training("mounting", 2, 2)};
  scenario.jobs[0].scratches = {"scratch"};
  start(std::move(scenario));
  ASSERT_TRUE(until([&] { return waits_for("StorageClassNotFound"); }));
  make_class();
  std::map<std::string, std::string> node_of;  // pods
  ASSERT_TRUE(until([&] { return cluster_->witness().pods().size() == 2; }));
  EXPECT_FALSE(until([&] { return bound_pods() > 0; }, 3s));
  for (const auto& [name, pod] : cluster_->witness().pods()) {
    const std::string claim = pod.name + "-scratch";
    make_claim(claim, "ReadWriteOnce",
               fmt::format(R"(,"ownerReferences":[{{"apiVersion":"v1","kind":"Pod","name":"{}",
                              "uid":"{}","controller":true}}])",
                           pod.name, pod.uid));
    const kube::Key key{"default", claim};
    ASSERT_TRUE(until([&] { return !selected(key).empty(); }));
    make_volume("pv-" + pod.name, {selected(key)}, "ReadWriteOnce");
    bind(key, "pv-" + pod.name);
  }
  ASSERT_TRUE(until([&] { return trains(2); }, 2 * kSoon));
}

}  // namespace
}  // namespace rubato::sim
