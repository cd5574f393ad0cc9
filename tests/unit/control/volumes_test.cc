// Volumes: each way in which a claim narrows the nodes of a job or makes it wait.
#include "operator/control/volumes.h"

#include "tests/unit/control/fixtures.h"

namespace rubato::control {
namespace {

// A small storage world; each piece is written as the JSON that a server would send.
struct Storage {
  std::vector<std::shared_ptr<const kube::Claim>> claims;
  std::vector<std::shared_ptr<const kube::Volume>> volumes;
  std::vector<std::shared_ptr<const kube::StorageClass>> classes;

  void claim(const std::string& name, const std::string& mode, const std::string& spec,
             const std::string& phase = "Pending", const std::string& meta = "") {
    claims.push_back(std::make_shared<const kube::Claim>(*kube::Claim::decode(
        parse(R"({"metadata":{"namespace":"ns","uid":"u-)" + name + R"(","name":")" + name + "\"" +
              meta + R"(},"spec":{"resources":{"requests":{"storage":"1Gi"}},"accessModes":[")" +
              mode + "\"]" + spec + R"(},"status":{"phase":")" + phase + R"("}})"))));
  }
  void bound(const std::string& name, const std::string& mode = "ReadWriteMany") {
    claim(name, mode, R"(,"volumeName":"pv")", "Bound");
  }
  void volume(const std::string& name, const std::string& spec, const std::string& size = "1Gi",
              const std::string& mode = "ReadWriteMany", const std::string& phase = "Available") {
    volumes.push_back(std::make_shared<const kube::Volume>(*kube::Volume::decode(
        parse(R"({"metadata":{"name":")" + name + R"("},"spec":{"capacity":{"storage":")" + size +
              R"("},"accessModes":[")" + mode + "\"]" + spec + R"(},"status":{"phase":")" + phase +
              R"("}})"))));
  }
  void storage_class(const std::string& name, const std::string& provisioner,
                     const std::string& binding, const std::string& more = "",
                     const std::string& meta = "") {
    classes.push_back(std::make_shared<const kube::StorageClass>(*kube::StorageClass::decode(
        parse(R"({"metadata":{"name":")" + name + "\"" + meta + R"(},"provisioner":")" +
              provisioner + R"(","volumeBindingMode":")" + binding + "\"" + more + "}"))));
  }
  StorageView view() const { return storage_of(claims, volumes, classes, claims_denied); }
  std::set<std::string> claims_denied;
};

std::string on_node(const std::string& name) {
  return R"(,"nodeAffinity":{"required":{"nodeSelectorTerms":[{"matchFields":[
           {"key":"metadata.name","operator":"In","values":[")" +
         name + R"("]}]}]}})";
}

kube::Pod mounting(const std::string& volumes) {
  return *kube::Pod::decode(parse(
      R"({"metadata":{"name":"job-w0","namespace":"ns"},"spec":{"volumes":[)" + volumes + "]}}"));
}
kube::Pod mounting_claim(const std::string& name) {
  return mounting(R"({"name":"v","persistentVolumeClaim":{"claimName":")" + name + "\"}}");
}

VolumeNeeds needs(const Storage& storage, std::int64_t pods_max = 4) {
  return volume_needs(mounting_claim("data"), pods_max, storage.view());
}

void expect_waits(const VolumeNeeds& found, const std::string& reason,
                  const std::vector<std::string>& words) {
  EXPECT_EQ(found.problem.reason, reason) << found.problem.message;
  EXPECT_TRUE(found.problem.message.starts_with("spec.template.spec.volumes: "));
  for (const std::string& word : words)
    EXPECT_NE(found.problem.message.find(word), std::string::npos)
        << word << " in: " << found.problem.message;
}

constexpr const char* kZonal = R"(,"storageClassName":"zonal")";

TEST(Volumes, ABoundClaimLimitsTheNodesToThoseThatReachItsVolume) {
  Storage storage;
  storage.bound("data");
  storage.volume("pv", on_node("n1"), "1Gi", "ReadWriteMany", "Bound");
  const VolumeNeeds found = needs(storage);
  EXPECT_EQ(found.problem.reason, "");
  EXPECT_TRUE(found.admits(*node("n1", 1)));
  EXPECT_FALSE(found.admits(*node("n2", 1)));
  EXPECT_NE(found.why_narrow().find("spec.nodeAffinity"), std::string::npos);
  EXPECT_TRUE(found.one_node.empty());
}

TEST(Volumes, ABoundClaimOfASharedVolumeLimitsNothing) {
  Storage storage;
  storage.bound("data", "ReadWriteOnce");
  storage.volume("pv", "", "1Gi", "ReadWriteMany", "Bound");
  const VolumeNeeds found = needs(storage);
  EXPECT_EQ(found.problem.reason, "");
  EXPECT_TRUE(found.admits(*node("n2", 1)));
  EXPECT_TRUE(found.one_node.empty()) << "what the volume can do counts";
  EXPECT_EQ(found.why_narrow(), "");
}

TEST(Volumes, AReadWriteOnceVolumeIsForOneNode) {
  Storage storage;
  storage.bound("data", "ReadWriteOnce");
  storage.volume("pv", "", "1Gi", "ReadWriteOnce", "Bound");
  const VolumeNeeds found = needs(storage);
  EXPECT_EQ(found.problem.reason, "");
  EXPECT_EQ(found.one_node, (std::vector<kube::Key>{{"ns", "data"}}));
  EXPECT_NE(found.why_narrow().find("ReadWriteMany is for several"), std::string::npos);
}

TEST(Volumes, AReadWriteOncePodClaimIsForAJobOfOnePod) {
  Storage storage;
  storage.bound("data", "ReadWriteOncePod");
  storage.volume("pv", "", "1Gi", "ReadWriteOncePod", "Bound");
  expect_waits(needs(storage), "ClaimInUse",
               {"\"data\"", "ReadWriteOncePod", "4 pods", "set gpus.max to gpus.perPod"});
  const VolumeNeeds alone = needs(storage, 1);
  EXPECT_EQ(alone.problem.reason, "");
  EXPECT_EQ(alone.one_pod, (std::vector<kube::Key>{{"ns", "data"}}));
}

TEST(Volumes, AMissingClaimIsWaitedFor) {
  expect_waits(needs(Storage()), "ClaimNotFound", {"\"data\"", "does not exist", "create it"});
  Storage storage;
  storage.claim("data", "ReadWriteMany", "", "Bound",
                R"(,"deletionTimestamp":"2026-11-21T08:00:00Z")");
  expect_waits(needs(storage), "ClaimNotFound", {"is being deleted"});
}

TEST(Volumes, AClaimThatMayNotBeListedIsNotSaidToBeMissing) {
  Storage storage;
  storage.claims_denied = {"ns"};
  expect_waits(needs(storage), "ClaimsDenied", {"\"data\"", "may not list", "namespace \"ns\""});
  storage.bound("data");
  storage.volume("pv", "", "1Gi", "ReadWriteMany", "Bound");
  EXPECT_EQ(needs(storage).problem.reason, "") << "it was seen before";
}

TEST(Volumes, ALostClaimIsWaitedFor) {
  Storage storage;
  storage.claim("data", "ReadWriteMany", R"(,"volumeName":"pv")", "Lost");
  expect_waits(needs(storage), "ClaimLost", {"\"pv\"", "delete the claim and create it anew"});
}

TEST(Volumes, AnUnboundClaimOfAnImmediateClassIsWaitedFor) {
  Storage storage;
  storage.claim("data", "ReadWriteMany", kZonal);
  storage.storage_class("zonal", "disk.example", "Immediate");
  expect_waits(needs(storage), "ClaimNotBound",
               {"Immediate", "disk.example", "kubectl describe pvc data"});
}

TEST(Volumes, AnUnboundClaimWithoutAClassOrWithAVolumeToComeIsWaitedFor) {
  Storage storage;
  storage.claim("data", "ReadWriteMany", "");
  expect_waits(needs(storage), "ClaimNotBound", {"names no StorageClass", "spec.storageClassName"});
  storage.claims.clear();
  storage.claim("data", "ReadWriteMany", R"(,"volumeName":"pv")");
  expect_waits(needs(storage), "ClaimNotBound", {"waits for its PersistentVolume \"pv\""});
  storage.claims.clear();
  storage.bound("data");
  expect_waits(needs(storage), "ClaimNotBound", {"\"pv\"", "does not exist"});
}

TEST(Volumes, AMissingStorageClassIsWaitedFor) {
  Storage storage;
  storage.claim("data", "ReadWriteMany", kZonal);
  expect_waits(needs(storage), "StorageClassNotFound", {"\"zonal\"", "kubectl get sc"});
}

TEST(Volumes, AVolumeThatIsMadeOnDemandIsMadeWhereItsClassAllows) {
  Storage storage;
  storage.claim("data", "ReadWriteMany", kZonal);
  storage.storage_class(
      "zonal", "disk.example", "WaitForFirstConsumer",
      R"(,"allowedTopologies":[{"matchLabelExpressions":[{"key":"nvidia.com/gpu.product","values":["A"]}]}])");
  EXPECT_EQ(needs(storage).problem.reason, "");
  EXPECT_TRUE(needs(storage).admits(*node("n1", 1)));
  storage.classes.clear();
  storage.storage_class(
      "zonal", "disk.example", "WaitForFirstConsumer",
      R"(,"allowedTopologies":[{"matchLabelExpressions":[{"key":"zone","values":["b"]}]}])");
  EXPECT_FALSE(needs(storage).admits(*node("n1", 1)));
  EXPECT_NE(needs(storage).why_narrow().find("allowedTopologies"), std::string::npos);
}

TEST(Volumes, WhoMakesOneForANodeIsWaitedFor) {
  Storage storage;
  storage.claim("data", "ReadWriteMany", kZonal, "Pending",
                R"(,"annotations":{"volume.kubernetes.io/selected-node":"n1"})");
  storage.storage_class("zonal", "disk.example", "WaitForFirstConsumer");
  expect_waits(needs(storage), "ClaimNotBound", {"being made for node n1 by disk.example"});
}

TEST(Volumes, OfClassesWithoutAProvisionerAFreeVolumeIsTaken) {
  Storage storage;
  storage.claim("data", "ReadWriteOnce", kZonal);
  storage.storage_class("zonal", "kubernetes.io/no-provisioner", "WaitForFirstConsumer");
  expect_waits(needs(storage), "ClaimNotBound", {"no free PersistentVolume", "make one by hand"});
  storage.volume("pv-big", kZonal + on_node("n1"), "4Gi", "ReadWriteOnce");
  storage.volume("pv-fit", kZonal + on_node("n1"), "2Gi", "ReadWriteOnce");
  storage.volume("pv-mode", kZonal + on_node("n2"), "2Gi", "ReadOnlyMany");
  storage.volume("pv-other", R"(,"storageClassName":"other")" + on_node("n2"), "2Gi",
                 "ReadWriteOnce");
  storage.volume("pv-small", kZonal + on_node("n2"), "1Mi", "ReadWriteOnce");
  storage.volume("pv-taken", kZonal + on_node("n2"), "2Gi", "ReadWriteOnce", "Bound");
  const VolumeNeeds found = needs(storage);
  EXPECT_EQ(found.problem.reason, "");
  EXPECT_TRUE(found.admits(*node("n1", 1)));
  EXPECT_FALSE(found.admits(*node("n2", 1)));
  const auto on = [&](const std::string& name) {
    const auto volume = volume_for(*storage.claims[0], *node(name, 1), storage.view());
    return volume ? volume->meta.name : "";
  };
  EXPECT_EQ(on("n1"), "pv-fit");
  EXPECT_EQ(on("n2"), "");
  // One that is kept for it already is the only one, wherever it is.
  storage.volume(
      "pv-kept",
      kZonal + on_node("n2") + R"(,"claimRef":{"namespace":"ns","name":"data","uid":"u-data"})",
      "8Gi", "ReadWriteOnce");
  EXPECT_EQ(on("n1"), "");
  EXPECT_EQ(on("n2"), "pv-kept");
  EXPECT_FALSE(needs(storage).admits(*node("n1", 1)));
}

TEST(Volumes, ASelectorOfTheClaimChoosesAmongVolumes) {
  Storage storage;
  storage.claim("data", "ReadWriteMany",
                std::string(kZonal) + R"(,"selector":{"matchLabels":{"tier":"fast"}})");
  storage.storage_class("zonal", "kubernetes.io/no-provisioner", "WaitForFirstConsumer");
  storage.volume("pv", kZonal);
  EXPECT_EQ(needs(storage).problem.reason, "ClaimNotBound");
}

TEST(Volumes, AnEphemeralVolumeNeedsItsClass) {
  const kube::Pod pod = mounting(
      R"({"name":"scratch","ephemeral":{"volumeClaimTemplate":{"spec":{"storageClassName":"zonal"}}}})");
  Storage storage;
  const auto found = [&](const kube::Pod& of) { return volume_needs(of, 4, storage.view()); };
  expect_waits(found(pod), "StorageClassNotFound", {"\"scratch\" names StorageClass \"zonal\""});
  storage.storage_class(
      "zonal", "disk.example", "WaitForFirstConsumer",
      R"(,"allowedTopologies":[{"matchLabelExpressions":[{"key":"zone","values":["b"]}]}])");
  EXPECT_EQ(found(pod).problem.reason, "");
  EXPECT_FALSE(found(pod).admits(*node("n1", 1)));
  const kube::Pod plain =
      mounting(R"({"name":"scratch","ephemeral":{"volumeClaimTemplate":{"spec":{}}}})");
  expect_waits(found(plain), "StorageClassNotFound", {"none is the default"});
  storage.storage_class("std", "disk.example", "Immediate", "",
                        R"(,"annotations":{"storageclass.kubernetes.io/is-default-class":"true"})");
  EXPECT_EQ(found(plain).problem.reason, "");
  EXPECT_EQ(claims_of(pod), (std::vector<kube::Key>{{"ns", "job-w0-scratch"}}));
}

TEST(Volumes, WhatStandsBetweenAPodAndItsNode) {
  Storage storage;
  const auto state = [&](const std::string& on) {
    const StorageView view = storage.view();
    return claim_state(view.claim({"ns", "data"}).get(), *node(on, 1), view);
  };
  EXPECT_EQ(state("n1"), ClaimState::kWaits) << "it is not there";
  storage.claim("data", "ReadWriteMany", kZonal);
  EXPECT_EQ(state("n1"), ClaimState::kWaits) << "its class is not there";
  storage.storage_class("zonal", "disk.example", "WaitForFirstConsumer");
  EXPECT_EQ(state("n1"), ClaimState::kUnselected);
  storage.claims.clear();
  storage.claim("data", "ReadWriteMany", kZonal, "Pending",
                R"(,"annotations":{"volume.kubernetes.io/selected-node":"n1"})");
  EXPECT_EQ(state("n1"), ClaimState::kSelected);
  storage.claims.clear();
  storage.bound("data");
  EXPECT_EQ(state("n1"), ClaimState::kWaits) << "its volume is not there";
  storage.volume("pv", on_node("n1"));
  EXPECT_EQ(state("n1"), ClaimState::kReady);
  EXPECT_EQ(state("n2"), ClaimState::kElsewhere);
}

// ---- of the whole capture

World world_with(Storage& storage) {
  World w;
  w.nodes = {node("n1", 2), node("n2", 2)};
  w.wall = *parse_rfc3339("2026-11-21T08:00:00Z");
  w.claims = storage.claims;
  w.volumes = storage.volumes;
  w.storage_classes = storage.classes;
  return w;
}

std::shared_ptr<const JobObject> job_with_claim(int min, int max, const std::string& status = "",
                                                const std::string& uid = "job-uid-1") {
  auto made = std::make_shared<JobObject>(*job(min, max, status));
  made->job.meta.uid = uid;
  made->job.spec.pod_template.at("spec").set(
      "volumes", parse(R"([{"name":"v","persistentVolumeClaim":{"claimName":"data"}}])"));
  return made;
}

std::shared_ptr<const kube::Pod> user(const std::string& name, const std::string& on,
                                      const std::string& owner_uid = "") {
  auto made = std::make_shared<kube::Pod>(*pod(name, on, "Running", owner_uid));
  made->claims = {"data"};
  return made;
}

TEST(CaptureVolumes, TheNodesOfAJobAreThoseThatReachItsVolumes) {
  Storage storage;
  storage.bound("data");
  storage.volume("pv", on_node("n1"), "1Gi", "ReadWriteMany", "Bound");
  World w = world_with(storage);
  w.jobs = {job_with_claim(1, 4)};
  const auto state = capture(w, config());
  EXPECT_EQ(state.jobs[0].eligible, (std::set<sched::NodeId>{"n1"}));
  EXPECT_NE(state.jobs[0].narrowed.find("\"pv\""), std::string::npos);
  EXPECT_EQ(state.jobs[0].refused, "");
}

TEST(CaptureVolumes, AJobThatWaitsForItsVolumesIsRefusedByName) {
  Storage storage;
  World w = world_with(storage);
  w.jobs = {job_with_claim(1, 4)};
  EXPECT_EQ(capture(w, config()).jobs[0].refused_as, "ClaimNotFound");
}

TEST(CaptureVolumes, AOneNodeVolumeStaysWhereItIsUsed) {
  Storage storage;
  storage.bound("data", "ReadWriteOnce");
  storage.volume("pv", "", "1Gi", "ReadWriteOnce", "Bound");
  World w = world_with(storage);
  w.jobs = {job_with_claim(1, 4)};
  EXPECT_TRUE(capture(w, config()).jobs[0].one_node);
  EXPECT_EQ(capture(w, config()).jobs[0].eligible->size(), 2u);
  w.pods = {user("somebody", "n2")};
  EXPECT_EQ(capture(w, config()).jobs[0].eligible, (std::set<sched::NodeId>{"n2"}));
  // A promise of another job counts as well as a pod.
  w.pods.clear();
  w.jobs.push_back(job_with_claim(1, 1,
                                  R"("allocation":{"epoch":1,"nextOrdinal":1,"gpus":1,"pods":[
         {"name":"job-w0","ordinal":0,"node":"n1","gpuType":"A","gpus":1}]})",
                                  "job-uid-2"));
  EXPECT_EQ(capture(w, config()).jobs[0].eligible, (std::set<sched::NodeId>{"n1"}));
}

TEST(CaptureVolumes, AOnePodVolumeIsWaitedForUntilItsPodIsGone) {
  Storage storage;
  storage.bound("data", "ReadWriteOncePod");
  storage.volume("pv", "", "1Gi", "ReadWriteOncePod", "Bound");
  World w = world_with(storage);
  w.jobs = {job_with_claim(1, 1)};
  EXPECT_EQ(capture(w, config()).jobs[0].refused_as, "");
  w.pods = {user("somebody", "n2")};
  const auto state = capture(w, config());
  EXPECT_EQ(state.jobs[0].refused_as, "ClaimInUse");
  EXPECT_NE(state.jobs[0].refused.find("pod somebody on node n2"), std::string::npos);
  w.jobs = {job_with_claim(1, 1,
                           R"("allocation":{"epoch":1,"nextOrdinal":1,"gpus":1,"pods":[
         {"name":"job-w0","ordinal":0,"node":"n1","gpuType":"A","gpus":1}]})")};
  w.pods = {user("job-w0", "n1", "job-uid-1")};
  EXPECT_EQ(capture(w, config()).jobs[0].refused_as, "") << "its own";
}

TEST(CaptureVolumes, ExclusiveClaimsAreThoseOfOneNodeOrPod) {
  Storage storage;
  storage.bound("data", "ReadWriteOnce");
  storage.volume("pv", "", "1Gi", "ReadWriteOnce", "Bound");
  World w = world_with(storage);
  const auto claims = exclusive_claims(job_with_claim(1, 4)->job, w, config());
  EXPECT_EQ(claims, (std::vector<kube::Key>{{"ns", "data"}}));
  EXPECT_TRUE(exclusive_claims(job(1, 4)->job, w, config()).empty());
}

}  // namespace
}  // namespace rubato::control
