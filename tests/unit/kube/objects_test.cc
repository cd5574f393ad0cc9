#include "kube/informer.h"
#include "kube/objects/node.h"
#include "kube/objects/object.h"
#include "kube/objects/pod.h"
#include "kube/objects/storage.h"
#include "kube/quantity.h"

#include <limits>

#include <gtest/gtest.h>

namespace rubato::kube {
namespace {

static_assert(RawResource<Pod> && TypedResource<Pod>);
static_assert(RawResource<Node> && TypedResource<Node>);
static_assert(Resource<Object> && !RawResource<Object> && !TypedResource<Object>);

TEST(Quantity, Units) {
  struct Row {
    const char* text;
    std::int64_t units;
    std::int64_t milli;
  };
  for (const Row& row :
       {Row{"0", 0, 0}, Row{"2", 2, 2000}, Row{"250m", 1, 250}, Row{"-250m", -1, -250},
        Row{"1.5Gi", 1610612736, 1610612736000}, Row{"64k", 64000, 64000000},
        Row{"1e3", 1000, 1000000}, Row{"12E-1", 2, 1200}, Row{".5", 1, 500}, Row{"5.", 5, 5000},
        Row{"100n", 1, 1}, Row{"+1Ki", 1024, 1024000},
        Row{"1E", 1000000000000000000, std::numeric_limits<std::int64_t>::max()}}) {
    const auto units = parse_quantity(row.text);
    const auto milli = parse_quantity_milli(row.text);
    ASSERT_TRUE(units.ok() && milli.ok()) << row.text;
    EXPECT_EQ(units.value(), row.units) << row.text;
    EXPECT_EQ(milli.value(), row.milli) << row.text;
  }
  for (const auto& [text, units] : std::initializer_list<std::pair<const char*, std::int64_t>>{
           {"0.3333333333333333333333333333Gi", 357913942},
           {"1.00000000000000000000000Gi", 1 << 30},
           {"-1.00000000000000000000000Gi", -(1 << 30)},
           {"1.00000000000000000000000000000000000000001Ki", 1025},
           {"0.9999999999999999999999999999999999999999Ei", std::int64_t{1} << 60},
           {"0.0000000000000000000000000000000000000000000000000001Ei", 1}})
    EXPECT_EQ(parse_quantity(text).value_or(0), units) << text;
  EXPECT_EQ(parse_quantity_milli("0.50000000000000000000000000000").value_or(0), 500);
  EXPECT_EQ(parse_quantity("16Ei").value_or(0), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(parse_quantity("99999999999999999999999999999999999").value_or(0),
            std::numeric_limits<std::int64_t>::max());
}

TEST(Quantity, Refused) {
  for (const char* text : {"", "m", "-", ".", "1.2.3", "1 Gi", "1gi", "1Zi", "1e", "1e999", "0x10"})
    EXPECT_FALSE(parse_quantity(text).ok()) << text;
}

constexpr const char* kPod = R"({
  "kind": "Pod", "apiVersion": "v1",
  "metadata": {
    "name": "job-worker-7", "namespace": "team-a", "uid": "u-1", "resourceVersion": "42",
    "generation": 3, "creationTimestamp": "2026-11-21T07:38:29Z",
    "deletionTimestamp": "2026-11-21T08:00:00Z",
    "labels": {"b": "2", "a": "1"},
    "annotations": {"rubato.dev/epoch": "7", "other.io/large": "x"},
    "ownerReferences": [{"kind": "Other", "name": "o", "uid": "u-o"},
                        {"kind": "TrainingJob", "name": "job", "uid": "u-j", "controller": true}],
    "finalizers": ["rubato.dev/gpu"],
    "managedFields": [{"manager": "x", "fieldsV1": {"f:metadata": {}}}]},
  "spec": {
    "nodeName": "n1", "schedulerName": "rubato", "priority": 1000, "hostNetwork": true,
    "containers": [
      {"name": "w", "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"},
                                  "limits": {"nvidia.com/gpu": "8", "cpu": "4"}}},
      {"name": "s", "resources": {"requests": {"cpu": 1}}}],
    "initContainers": [
      {"name": "side", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}},
      {"name": "init", "resources": {"requests": {"memory": "3Gi", "cpu": "1"}}}],
    "overhead": {"cpu": "50m"},
    "nodeSelector": {"z": "1", "gpu": "h200"},
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
      "nodeSelectorTerms": [
        {"matchExpressions": [{"key": "rack", "operator": "In", "values": ["r1", "r2"]}]},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n9"]}]},
        {}]}}},
    "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoSchedule"},
                    {"key": "v", "value": "1"}],
    "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "e"},
                {"name": "f", "ephemeral": {"volumeClaimTemplate": {"spec": {
                  "storageClassName": "fast"}}}},
                {"name": "g", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}],
    "schedulingGates": [{"name": "g"}], "resourceClaims": [{"name": "r"}]},
  "status": {
    "phase": "Failed", "reason": "Evicted", "message": "low on disk", "podIP": "10.0.0.1",
    "hostIP": "192.168.0.1", "nominatedNodeName": "n2", "startTime": "2026-11-21T07:39:00Z",
    "conditions": [{"type": "Ready", "status": "True", "reason": "R",
                    "lastTransitionTime": "2026-11-21T07:40:00Z"}],
    "containerStatuses": [
      {"name": "w", "ready": false, "restartCount": 2,
       "state": {"terminated": {"exitCode": 137, "signal": 9, "reason": "OOMKilled"}}},
      {"name": "s", "ready": true, "state": {"running": {"startedAt": "x"}}},
      {"name": "t", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]}})";

// All of it as text, so that two decodings can be compared and a difference can be read.
std::string text_of(const Amounts& amounts) {
  std::string text;
  for (const auto& amount : amounts)
    text += amount.resource + "=" + std::to_string(amount.value) + ";";
  return text;
}

void expect_same(const Pod& a, const Pod& b) {
  EXPECT_TRUE(a.meta == b.meta);
  EXPECT_EQ(a.node_name, b.node_name);
  EXPECT_EQ(a.scheduler_name, b.scheduler_name);
  EXPECT_EQ(a.nominated_node, b.nominated_node);
  EXPECT_EQ(a.priority, b.priority);
  EXPECT_EQ(text_of(a.requests), text_of(b.requests));
  EXPECT_EQ(a.node_selector, b.node_selector);
  EXPECT_TRUE(a.affinity == b.affinity);
  EXPECT_TRUE(a.tolerations == b.tolerations);
  EXPECT_EQ(a.claims, b.claims);
  EXPECT_EQ(a.ephemeral, b.ephemeral);
  EXPECT_EQ(a.scheduling_gates, b.scheduling_gates);
  EXPECT_EQ(a.has_resource_claims, b.has_resource_claims);
  EXPECT_EQ(a.host_network, b.host_network);
  EXPECT_EQ(a.phase, b.phase);
  EXPECT_EQ(a.reason, b.reason);
  EXPECT_EQ(a.message, b.message);
  EXPECT_EQ(a.pod_ip, b.pod_ip);
  EXPECT_EQ(a.host_ip, b.host_ip);
  EXPECT_EQ(a.started, b.started);
  EXPECT_TRUE(a.conditions == b.conditions);
  EXPECT_TRUE(a.containers == b.containers);
}

TEST(PodTest, ALongMessageIsCutBetweenCharacters) {
  const std::string whole(kMessageBytesMax - 1, 'a');
  const auto pod = Pod::decode_raw(R"({"metadata": {"name": "p", "namespace": "n", "uid": "u"},
      "status": {"message": ")" + whole +
                                   R"(é"}})");
  ASSERT_TRUE(pod.ok());
  EXPECT_EQ(pod->message, whole);
}

TEST(PodTest, WhatIsRead) {
  const auto decoded = Pod::decode_raw(kPod);
  ASSERT_TRUE(decoded.ok());
  const Pod& pod = decoded.value();
  EXPECT_EQ(to_string(pod.meta.key()), "team-a/job-worker-7");
  EXPECT_EQ(pod.meta.generation, 3);
  EXPECT_TRUE(pod.meta.deleting.has_value());
  EXPECT_EQ(pod.meta.owner, (Owner{"TrainingJob", "job", "u-j"}));
  EXPECT_EQ(find(pod.meta.labels, "b"), "2");
  EXPECT_EQ(pod.meta.annotations, (StringMap{{"rubato.dev/epoch", "7"}}));
  EXPECT_EQ(pod.meta.finalizers, std::vector<std::string>{"rubato.dev/gpu"});
  // cpu: 1.5 + 1 + sidecar 0.1 + overhead 0.05; memory: the init container needs most.
  EXPECT_EQ(text_of(pod.requests), "cpu=2650;memory=3221225472;nvidia.com/gpu=8;");
  EXPECT_EQ(amount_of(pod.requests, "nvidia.com/gpu"), 8);
  ASSERT_EQ(pod.affinity.terms.size(), 3u);
  EXPECT_TRUE(pod.affinity.admits({{"rack", "r1"}}, "n1"));
  EXPECT_TRUE(pod.affinity.admits({}, "n9"));
  EXPECT_FALSE(pod.affinity.admits({}, "n1"));  // an empty term matches no node
  EXPECT_EQ(pod.ephemeral, (std::vector<EphemeralVolume>{{"f", "fast"}, {"g", std::nullopt}}));
  EXPECT_EQ(pod.phase, PodPhase::kFailed);
  EXPECT_TRUE(pod.is_ready());
  ASSERT_EQ(pod.containers.size(), 3u);
  EXPECT_EQ(pod.containers[0].exit_code, 137);
  EXPECT_EQ(pod.containers[0].reason, "OOMKilled");
  EXPECT_EQ(pod.containers[2].reason, "ImagePullBackOff");
  EXPECT_TRUE(tolerates(pod.tolerations, Taint{"k", "any", "NoSchedule"}));
  EXPECT_FALSE(tolerates(pod.tolerations, Taint{"k", "any", "NoExecute"}));
  EXPECT_TRUE(tolerates(pod.tolerations, Taint{"v", "1", "NoExecute"}));
  EXPECT_FALSE(tolerates(pod.tolerations, Taint{"v", "2", "NoExecute"}));
}

// As kubelets admit pods: what is asked for the whole pod stands for all of its containers.
TEST(PodTest, WhatThePodAsksForAsAWholeCounts) {
  const auto requests = [](const std::string& resources) {
    const auto pod = Pod::decode(
        json::parse(R"({"metadata":{"name":"p","uid":"u"},"spec":{"resources":)" + resources +
                    R"(,"overhead":{"cpu":"50m"},"containers":[{"resources":{"requests":
                    {"cpu":"1","x.io/gpu":"2"}}},{"resources":{"requests":{"cpu":"1"}}}]}})")
            .value());
    return text_of(pod.value().requests);
  };
  EXPECT_EQ(requests("{}"), "cpu=2050;x.io/gpu=2;");
  EXPECT_EQ(requests(R"({"requests":{"cpu":"4","memory":"1Ki"}})"),
            "cpu=4050;memory=1024;x.io/gpu=2;");
  EXPECT_EQ(requests(R"({"limits":{"cpu":"4","memory":"1Ki"}})"),
            "cpu=2050;memory=1024;x.io/gpu=2;");
}

TEST(PodTest, SumsOfWhatItAsksForStayAtTheMostThatIsHeld) {
  const auto pod = Pod::decode(json::parse(R"({"metadata":{"name":"p","uid":"u"},"spec":{
      "overhead":{"memory":"1Gi"},
      "containers":[{"resources":{"requests":{"memory":"9E"}}},
                    {"resources":{"requests":{"memory":"9E"}}}]}})")
                                   .value());
  EXPECT_EQ(amount_of(pod.value().requests, "memory"), std::numeric_limits<std::int64_t>::max());
}

// Both decoders, on the sample and on thousands of damaged ones: parts removed, replaced by values
// of other types. Equal results or equal refusals.
void damage(json::Value& value, Rng& rng, double rate) {
  static const json::Value kOdd[] = {json::Value(),
                                     json::Value(true),
                                     json::Value(7),
                                     json::Value(1.5),
                                     json::Value("x"),
                                     json::Value::array({1}),
                                     json::Value::object({{"name", "y"}})};
  if (rng.chance(rate)) {
    value = kOdd[rng.below(std::size(kOdd))];
    return;
  }
  if (value.is_object()) {
    for (auto& member : value.mutable_members()) damage(member.second, rng, rate);
    if (value.size() > 0 && rng.chance(rate)) {
      const std::string key = value.members()[rng.below(value.size())].first;
      value.erase(key);
    }
  } else if (value.is_array()) {
    for (auto& item : value.mutable_items()) damage(item, rng, rate);
  }
}

TEST(PodTest, DecodersAgree) {
  const auto sample = json::parse(kPod);
  ASSERT_TRUE(sample.ok());
  constexpr std::uint64_t kSeed = 20261121;
  Rng rng(kSeed);
  for (int round = 0; round < 3000; ++round) {
    json::Value value = sample.value();
    if (round > 0) damage(value, rng, 0.03);
    const auto slow = Pod::decode(value);
    const auto fast = Pod::decode_raw(json::dump(value));
    ASSERT_EQ(slow.ok(), fast.ok()) << "seed " << kSeed << " round " << round;
    if (slow.ok()) expect_same(slow.value(), fast.value());
    ASSERT_FALSE(HasFailure()) << "seed " << kSeed << " round " << round << json::dump(value, 1);
  }
}

constexpr const char* kNode = R"({
  "metadata": {"name": "n1", "uid": "u", "resourceVersion": "9", "labels": {"rack": "r1"}},
  "spec": {"unschedulable": true, "providerID": "p://1",
           "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]},
  "status": {
    "capacity": {"cpu": "64", "memory": "1Ti", "nvidia.com/gpu": "8"},
    "allocatable": {"cpu": "63500m", "memory": "1000Gi", "nvidia.com/gpu": "8"},
    "conditions": [{"type": "DiskPressure", "status": "False"},
                   {"type": "Ready", "status": "True", "reason": "KubeletReady",
                    "lastHeartbeatTime": "2026-11-21T07:38:29Z",
                    "lastTransitionTime": "2026-11-21T07:30:00Z"}],
    "nodeInfo": {"bootID": "b-1"},
    "addresses": [{"type": "Hostname", "address": "n1.local"},
                  {"type": "InternalIP", "address": "10.1.0.1"},
                  {"type": "InternalIP", "address": "fd00::1"}],
    "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}}})";

TEST(NodeTest, DecodersAgree) {
  const auto value = json::parse(kNode);
  ASSERT_TRUE(value.ok());
  const auto slow = Node::decode(value.value());
  const auto fast = Node::decode_raw(kNode);
  ASSERT_TRUE(slow.ok() && fast.ok());
  for (const Node& node : {slow.value(), fast.value()}) {
    EXPECT_EQ(node.meta.key(), (Key{"", "n1"}));
    EXPECT_TRUE(node.unschedulable);
    EXPECT_EQ(node.provider_id, "p://1");
    EXPECT_TRUE(node.taints == std::vector<Taint>({Taint{"k", "v", "NoSchedule"}}));
    EXPECT_EQ(amount_of(node.allocatable, "cpu"), 63500);
    EXPECT_EQ(amount_of(node.capacity, "nvidia.com/gpu"), 8);
    EXPECT_EQ(node.ready, Node::Ready::kTrue);
    EXPECT_EQ(node.ready_reason, "KubeletReady");
    EXPECT_EQ(to_rfc3339(node.last_heartbeat), "2026-11-21T07:38:29Z");
    EXPECT_EQ(node.conditions.size(), 2u);
    EXPECT_EQ(node.boot_id, "b-1");
    EXPECT_EQ(node.internal_ip, "10.1.0.1");
    EXPECT_EQ(node.hostname, "n1.local");
    EXPECT_EQ(node.daemon_port, 10250);
  }
}

TEST(Versions, CompareAsIntegers) {
  EXPECT_TRUE(is_older_version("9", "10"));
  EXPECT_TRUE(is_older_version("", "1"));
  EXPECT_FALSE(is_older_version("10", "10"));
  EXPECT_FALSE(is_older_version("11", "10"));
}

NodeTerms terms_of(const std::string& terms) {
  const auto volume =
      Volume::decode(*json::parse(R"({"metadata":{"name":"v"},"spec":{"nodeAffinity":{"required":
                       {"nodeSelectorTerms":[)" +
                                  terms + "]}}}}"));
  EXPECT_TRUE(volume.ok());
  return volume->nodes;
}

TEST(NodeTerms, EachOperatorOfLabelsAndFields) {
  const StringMap n1{{"cores", "8"}, {"zone", "a"}};
  const auto admits = [&](const std::string& expression) {
    return terms_of(R"({"matchExpressions":[)" + expression + "]}").admits(n1, "n1");
  };
  EXPECT_TRUE(admits(R"({"key":"zone","operator":"In","values":["a","b"]})"));
  EXPECT_FALSE(admits(R"({"key":"zone","operator":"In","values":["b"]})"));
  EXPECT_TRUE(admits(R"({"key":"zone","operator":"NotIn","values":["b"]})"));
  EXPECT_FALSE(admits(R"({"key":"zone","operator":"NotIn","values":["a"]})"));
  EXPECT_TRUE(admits(R"({"key":"zone","operator":"Exists"})"));
  EXPECT_FALSE(admits(R"({"key":"rack","operator":"Exists"})"));
  EXPECT_TRUE(admits(R"({"key":"rack","operator":"DoesNotExist"})"));
  EXPECT_FALSE(admits(R"({"key":"zone","operator":"DoesNotExist"})"));
  EXPECT_TRUE(admits(R"({"key":"cores","operator":"Gt","values":["7"]})"));
  EXPECT_FALSE(admits(R"({"key":"cores","operator":"Gt","values":["8"]})"));
  EXPECT_TRUE(admits(R"({"key":"cores","operator":"Lt","values":["9"]})"));
  EXPECT_FALSE(admits(R"({"key":"cores","operator":"Lt","values":["8"]})"));
  EXPECT_FALSE(admits(R"({"key":"zone","operator":"Near","values":["a"]})")) << "not understood";
  const auto by_field = [&](const std::string& operation, const std::string& key) {
    return terms_of(R"({"matchFields":[{"key":")" + key + R"(","operator":")" + operation +
                    R"(","values":["n1"]}]})");
  };
  EXPECT_TRUE(by_field("In", "metadata.name").admits(n1, "n1"));
  EXPECT_FALSE(by_field("In", "metadata.name").admits(n1, "n2"));
  EXPECT_TRUE(by_field("NotIn", "metadata.name").admits(n1, "n2"));
  EXPECT_FALSE(by_field("NotIn", "metadata.name").admits(n1, "n1"));
  EXPECT_FALSE(by_field("NotIn", "spec.taints").admits(n1, "n2")) << "no field that is known";
}

TEST(NodeTerms, OneTermSuffices) {
  const std::string two = R"({"matchExpressions":[{"key":"zone","operator":"In","values":["a"]}]},
                             {"matchFields":[{"key":"metadata.name","operator":"In","values":["n2"]}]})";
  EXPECT_TRUE(terms_of(two).admits({{"zone", "a"}}, "n1"));
  EXPECT_TRUE(terms_of(two).admits({}, "n2"));
  EXPECT_FALSE(terms_of(two).admits({}, "n1"));
  EXPECT_FALSE(terms_of("{}").admits({}, "n1"));
  EXPECT_TRUE(terms_of("").admits({}, "n1")) << "no demand";
}

TEST(Storage, WhatIsReadOfAClaim) {
  const auto claim = Claim::decode(*json::parse(
      R"({"metadata":{"name":"data","namespace":"ns","uid":"u","annotations":
           {"volume.kubernetes.io/selected-node":"n1"}},
          "spec":{"accessModes":["ReadWriteOnce","ReadWriteMany"],"storageClassName":"",
                  "volumeName":"pv-1","selector":{"matchLabels":{"tier":"fast"}},
                  "resources":{"requests":{"storage":"1Gi"}}},
          "status":{"phase":"Bound"}})"));
  ASSERT_TRUE(claim.ok());
  EXPECT_EQ(claim->phase, Claim::Phase::kBound);
  EXPECT_EQ(claim->volume, "pv-1");
  EXPECT_EQ(claim->storage_class, "");
  EXPECT_TRUE(claim->modes.one_node && claim->modes.many_nodes && !claim->modes.one_pod);
  EXPECT_EQ(claim->requested, 1073741824);
  EXPECT_EQ(claim->selected_node, "n1");
  EXPECT_EQ(claim->volume_mode, "Filesystem");
  EXPECT_EQ(claim->selector.requirements().size(), 1u);
}

TEST(Storage, WhatIsReadOfAVolumeAndAClass) {
  const auto volume = Volume::decode(*json::parse(
      R"({"metadata":{"name":"pv-1"},"spec":{"capacity":{"storage":"2Gi"},"storageClassName":"local",
          "accessModes":["ReadWriteOncePod"],"claimRef":{"namespace":"ns","name":"data","uid":"u"}},
          "status":{"phase":"Available"}})"));
  ASSERT_TRUE(volume.ok());
  EXPECT_EQ(volume->capacity, 2147483648);
  EXPECT_EQ(volume->storage_class, "local");
  EXPECT_TRUE(volume->modes.one_pod && volume->available && volume->nodes.empty());
  EXPECT_EQ(volume->claim, (Key{"ns", "data"}));
  EXPECT_EQ(volume->claim_uid, "u");
  const auto storage_class = StorageClass::decode(*json::parse(
      R"({"metadata":{"name":"zonal","annotations":{"storageclass.kubernetes.io/is-default-class":"true"}},
          "provisioner":"disk.example","volumeBindingMode":"WaitForFirstConsumer",
          "allowedTopologies":[{"matchLabelExpressions":[{"key":"zone","values":["a","b"]}]}]})"));
  ASSERT_TRUE(storage_class.ok());
  EXPECT_EQ(storage_class->provisioner, "disk.example");
  EXPECT_TRUE(storage_class->waits_for_consumer && storage_class->is_default);
  EXPECT_TRUE(storage_class->topologies.admits({{"zone", "b"}}, "n1"));
  EXPECT_FALSE(storage_class->topologies.admits({{"zone", "c"}}, "n1"));
}

}  // namespace
}  // namespace rubato::kube
