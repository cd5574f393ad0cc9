// Each fault is made on an in-memory API server, and named with the way out.
#include "tools/rubatoctl/doctor/doctor.h"

#include "apiserver/memory/memory_client.h"
#include "apiserver/memory/memory_server.h"
#include "operator/api/crd.h"
#include "operator/api/kinds.h"
#include "operator/api/resources.h"
#include "tests/sentences.h"

#include <gtest/gtest.h>

namespace rubato::ctl {
namespace {

using json::Value;
namespace types = kube::types;

Value read_value(const std::string& text) {
  auto value = json::parse(text);
  if (!value.ok()) ADD_FAILURE() << value.error().what() << " in " << text;
  return value.ok() ? *value : Value();
}

class Doctor : public ::testing::Test {
 protected:
  Doctor() {
    for (const api::Kind& kind : api::kinds())
      make(types::kCustomResourceDefinition, "", api::crd(kind));
    for (const char* ns : {"default", "rubato-system", "kube-node-lease"})
      (void)server_.create(types::kNamespace, "",
                           read_value(R"({"metadata":{"name":")" + std::string(ns) + "\"}}"));
    lease("rubato-system", "rubato-operator", "operator-0", now_);
    node("n1", R"("nvidia.com/gpu":"4")", R"("nvidia.com/gpu":"4")");
  }

  void make(const kube::ResourceType& type, const std::string& ns, const Value& object) {
    const auto made = server_.create(type, ns, object);
    if (!made.ok()) {
      ADD_FAILURE() << made.error().message << " in " << json::dump(object);
      return;
    }
    if (!object["status"].is_object()) return;
    Value with_status = made.value().object;
    with_status.set("status", object["status"]);
    const auto updated = client_.update(type, with_status, {.subresource = "status"});
    if (!updated.ok()) ADD_FAILURE() << updated.error().what();
  }

  void lease(const std::string& ns, const std::string& name, const std::string& holder,
             WallTime time) {
    static_cast<void>(server_.remove(types::kLease, {ns, name}));
    make(types::kLease, ns,
         read_value(R"({"metadata":{"name":")" + name + R"("},"spec":{"holderIdentity":")" +
                    holder + R"(","leaseDurationSeconds":15,"renewTime":")" +
                    to_rfc3339_micro(time) + "\"}}"));
  }

  void node(const std::string& name, const std::string& capacity, const std::string& allocatable,
            const std::string& ready = "True", const std::string& labels = "") {
    static_cast<void>(server_.remove(types::kNode, {"", name}));
    make(types::kNode, "",
         read_value(R"({"metadata":{"name":")" + name + R"(","labels":{)" + labels +
                    R"(}},"spec":{},"status":{"capacity":{)" + capacity + R"(},"allocatable":{)" +
                    allocatable + R"(},"conditions":[{"type":"Ready","status":")" + ready +
                    R"("}]}})"));
  }

  // `volumes` and `mounts` are the inside of those lists.
  void job(const std::string& state, const std::string& reason, const std::string& volumes,
           const std::string& mounts, const std::string& conditions = "",
           const std::string& gpus = R"("min":1,"max":4)") {
    make(
        api::kTrainingJob, "default",
        read_value(
            R"({"apiVersion":"rubato.dev/v1alpha1","kind":"TrainingJob","metadata":{"name":"gpt"},"spec":{
             "gpus":{)" +
            gpus + R"(},"training":{"model":{"family":"gpt2","layers":1,"hidden":8,"heads":1},
             "data":{"path":"/data/t"},"batch":{"global":8,"micro":1,"sequenceLength":16},"stop":{"steps":9},
             "checkpoint":{"path":"/ckpt"}},"template":{"spec":{"volumes":[)" +
            volumes + R"(],"containers":[{"name":"worker","image":"x","volumeMounts":[)" + mounts +
            R"(]}]}}},"status":{"state":")" + state + R"(","reason":")" + reason +
            R"(","conditions":[)" + conditions + "]}}"));
  }

  std::string examined() {
    Patient patient{client_, now_ + ahead_, [this] { return server_time_; },
                    [this](Duration) { meanwhile_(); }};
    const std::string all = report(examine(patient, choice_));
    EXPECT_EQ(wrong_number(all), "") << all;
    return all;
  }
  void expect(const std::string& text) {
    const std::string all = examined();
    EXPECT_NE(all.find(text), std::string::npos) << "no \"" << text << "\" in\n" << all;
  }

  ThreadExecutor executor_;
  WallTime now_ = std::chrono::floor<std::chrono::seconds>(executor_.clock().wall());
  Duration ahead_{0};
  Result<WallTime> server_time_ = now_;
  std::function<void()> meanwhile_ = [] {};  // what happens while it waits
  SystemClock clock_;
  kube::MemoryServer server_{clock_};
  kube::MemoryClient client_{server_, executor_};
  DoctorChoice choice_{.ns = "default"};
};

TEST_F(Doctor, FindsNothingWhereNothingIs) {
  const std::string all = examined();
  EXPECT_EQ(all.find("WRONG"), std::string::npos) << all;
  EXPECT_EQ(all.find("warning"), std::string::npos) << all;
  expect("ok       operator: operator-0 leads\n");
  expect("ok       GPUs: 4 nvidia.com/gpu on 1 node\n");
  expect("ok       clocks: agree\n");
}

TEST_F(Doctor, Kinds) {
  const std::string crd = "trainingqueues.rubato.dev";
  auto as_stored = client_.get(types::kCustomResourceDefinition, {"", crd}, "");
  ASSERT_TRUE(as_stored.ok());
  Value& weight = as_stored->at("spec")
                      .at("versions")
                      .at(std::size_t{0})
                      .at("schema")
                      .at("openAPIV3Schema")
                      .at("properties")
                      .at("spec")
                      .at("properties")
                      .at("weight");
  EXPECT_EQ(json::dump(weight["default"]), "1.0");
  weight.set("default", 1);  // as a real server writes it
  ASSERT_TRUE(client_.update(types::kCustomResourceDefinition, *as_stored, {}).ok());
  EXPECT_EQ(examined().find("another build"), std::string::npos);
  auto stored = client_.get(types::kCustomResourceDefinition, {"", crd}, "");
  ASSERT_TRUE(stored.ok());
  stored->at("spec")
      .at("versions")
      .at(std::size_t{0})
      .at("schema")
      .at("openAPIV3Schema")
      .set("description", "older");
  ASSERT_TRUE(client_.update(types::kCustomResourceDefinition, *stored, {}).ok());
  expect("warning  kind TrainingQueue: its CRD is of another build than this rubatoctl");
  ASSERT_TRUE(client_.remove(types::kCustomResourceDefinition, {"", crd}, {}).ok());
  expect(
      "WRONG    kind TrainingQueue: its CRD is not installed\n"
      "         What to do: `kubectl apply --server-side -f crds/`");
}

TEST_F(Doctor, AnOperatorThatDoesNotLead) {
  lease("rubato-system", "rubato-operator", "operator-0", now_ - 5min);
  expect("WRONG    operator: nobody leads: operator-0 last said so 5m ago");
  choice_.operator_ns = "default";
  expect("WRONG    operator: none has led in namespace default");
  expect("--operator-namespace names another one");
}

TEST_F(Doctor, ALeaderWhoseClockIsWrongLeads) {
  for (const auto& [skew, words] : std::initializer_list<std::pair<Duration, std::string>>{
           {-4h, "4h behind"}, {4h, "4h ahead of"}}) {
    lease("rubato-system", "rubato-operator", "operator-0", now_ + skew);
    meanwhile_ = [this, at = now_ + skew]() mutable {
      lease("rubato-system", "rubato-operator", "operator-0", at += 2s);
    };
    expect("warning  operator: operator-0 leads; its clock is " + words + " the API server's");
  }
}

TEST_F(Doctor, ATimeInTheFutureDoesNotKeepALeaderAlive) {
  lease("rubato-system", "rubato-operator", "operator-0", now_ + 1h);
  expect("WRONG    operator: nobody leads: operator-0 last said so at ");
}

TEST_F(Doctor, AnImageOfTheOperatorThatCannotBePulled) {
  const auto pod = [this](const std::string& name, const std::string& labels) {
    make(types::kPod, "rubato-system",
         read_value(R"({"metadata":{"name":")" + name + R"(","labels":{)" + labels + R"(}},
      "spec":{"nodeName":"n1","containers":[{"name":"operator","image":"x:1"}]},"status":{"phase":"Pending","containerStatuses":[
      {"name":"operator","image":"x:1","state":{"waiting":{"reason":"ImagePullBackOff"}}}]}})"));
    expect("WRONG    operator: pod " + name +
           " on node n1: ImagePullBackOff (x:1)\n         What to do: push the image");
  };
  pod("older", R"("app.kubernetes.io/name":"rubato-operator")");  // of a chart of before
  pod("op-1", R"("app.kubernetes.io/name":"elastic-operator","rubato.dev/component":"operator")");
}

TEST_F(Doctor, Gpus) {
  node("n1", R"("nvidia.com/gpu":"4")", R"("nvidia.com/gpu":"3")");
  expect("warning  node n1: 3 of 4 nvidia.com/gpu are healthy");
  node("n1", "", "", "True", R"("nvidia.com/gpu.present":"true")");
  expect("WRONG    node n1: holds GPUs, and offers none");
  expect(
      "WRONG    GPUs: of 1 node that is Ready none offers nvidia.com/gpu or amd.com/gpu or "
      "rubato.dev/slot");
  node("n1", "", "", "False");
  expect("warning  node n1: is not Ready");
  static_cast<void>(server_.remove(types::kNode, {"", "n1"}));
  expect("WRONG    GPUs: the cluster has no nodes");
}

TEST_F(Doctor, AMaintenanceThatIsNoTime) {
  const auto announce = [&](const std::string& when) {
    static_cast<void>(server_.remove(types::kNode, {"", "n2"}));
    make(types::kNode, "",
         read_value(R"({"metadata":{"name":"n2","annotations":{"rubato.dev/maintenance-at":")" +
                    when + R"("}},"spec":{},"status":{"conditions":[{"type":"Ready",
                    "status":"True"}]}})"));
  };
  announce("2026-12-01T10:00:00Z");
  EXPECT_EQ(examined().find("maintenance-at"), std::string::npos);
  for (const char* when : {"tomorrow", ""}) {
    announce(when);
    expect(
        "warning  node n2: its annotation rubato.dev/maintenance-at is no time: no job leaves it "
        "before");
  }
}

TEST_F(Doctor, APolicyAndAQueueThatAreNotActedOn) {
  const auto with = [this](const kube::ResourceType& type, const std::string& name,
                           const std::string& spec, const std::string& condition) {
    make(type, "",
         read_value(R"({"apiVersion":"rubato.dev/v1alpha1","kind":")" + type.kind +
                    R"(","metadata":{"name":")" + name + R"("},"spec":)" + spec +
                    R"(,"status":{"conditions":[{"lastTransitionTime":"2026-01-01T00:00:00Z",)" +
                    condition + "}]}}"));
  };
  with(api::kSchedulingPolicy, "default", R"({"policy":"rubato"})",
       R"("type":"Active","status":"False","reason":"Refused","message":"no parameter x")");
  with(api::kTrainingQueue, "research", "{}",
       R"("type":"Enforced","status":"False","reason":"ParentRefused","message":"no queue y")");
  with(api::kTrainingQueue, "default", "{}",
       R"("type":"Enforced","status":"True","reason":"AllEnforced","message":"all")");
  expect(
      "warning  SchedulingPolicy default: Refused: no parameter x\n"
      "         What to do: docs/runbook.md: Refused\n"
      "warning  TrainingQueue research: ParentRefused: no queue y\n");
  EXPECT_EQ(examined().find("TrainingQueue default"), std::string::npos);
}

TEST_F(Doctor, Clocks) {
  ahead_ = 10s;
  expect("warning  clock of this machine: is 10s ahead of the API server's");
  ahead_ = -10min;
  expect("WRONG    clock of this machine: is 10m behind the API server's");
  ahead_ = 0s;
  lease("kube-node-lease", "n1", "n1", now_ + 30s);
  expect("warning  clock of node n1: 30s ahead of the API server's");
  lease("kube-node-lease", "n1", "n1", now_ - 5min);
  expect("warning  clock of node n1: its Lease is 5m old though it is Ready");
  server_time_ = Error(Code::kNotFound, "no date");
  EXPECT_EQ(examined().find("clock"), std::string::npos);
}

TEST_F(Doctor, AJobWithoutVolumes) {
  job("Failed", "DataNotFound", R"({"name":"d","persistentVolumeClaim":{"claimName":"text"}})",
      R"({"name":"d","mountPath":"/data"})",
      R"({"type":"Failed","status":"True","reason":"DataNotFound","message":"no /data/t","lastTransitionTime":"2026-01-01T00:00:00Z"})");
  expect(
      "WRONG    job default/gpt: Failed (DataNotFound): no /data/t\n"
      "         What to do: docs/runbook.md: DataNotFound");
  EXPECT_EQ(examined().find("claim text"), std::string::npos);  // it is over
}

TEST_F(Doctor, NodesThatAJobAvoids) {
  const auto avoided = [this](const std::string& node, Duration from_now) {
    return R"({"node":")" + node +
           R"(","reason":"PodGivenUp","message":"no image","times":1,"until":")" +
           to_rfc3339(now_ + from_now) + "\"}";
  };
  job("Queued", "NodesAvoided", "", "",
      R"(],"avoidedNodes":[)" + avoided("n1", 5min) + "," + avoided("n2", -5min));
  expect("warning  job default/gpt: avoids n1 until " + to_rfc3339(now_ + 5min) +
         " (PodGivenUp): no image\n         What to do: docs/runbook.md: PodGivenUp\n");
  EXPECT_EQ(examined().find("n2 until"), std::string::npos);
}

TEST_F(Doctor, PlacesOfAJob) {
  job("Queued", "WaitingForGPUs",
      R"({"name":"d","persistentVolumeClaim":{"claimName":"text"}},{"name":"c","hostPath":{"path":"/srv/ckpt"}})",
      R"({"name":"d","mountPath":"/data"},{"name":"c","mountPath":"/ckpt"})");
  expect("warning  job default/gpt: Queued (WaitingForGPUs)");
  expect("WRONG    job default/gpt: data at /data/t: PersistentVolumeClaim text does not exist");
  expect("warning  job default/gpt: checkpoints at /ckpt lie in /srv/ckpt of each node");
  make(
      types::kPersistentVolumeClaim, "default",
      read_value(
          R"({"metadata":{"name":"text"},"spec":{"accessModes":["ReadWriteOnce"]},"status":{"phase":"Pending"}})"));
  expect("warning  job default/gpt: data at /data/t: claim text is not bound yet");
}

TEST_F(Doctor, CheckpointsThatDoNotLast) {
  job("Running", "Training", R"({"name":"c","emptyDir":{}})",
      R"({"name":"c","mountPath":"/ckpt"})");
  expect("ok       job default/gpt: Running (Training)");
  expect("WRONG    job default/gpt: checkpoints at /ckpt lie in an emptyDir");
}

TEST_F(Doctor, CheckpointsThatOneNodeSees) {
  job("Running", "Training", R"({"name":"c","persistentVolumeClaim":{"claimName":"k"}})",
      R"({"name":"c","mountPath":"/ckpt"})",
      R"({"type":"Degraded","status":"True","reason":"Slow","message":"one is slow","lastTransitionTime":"2026-01-01T00:00:00Z"})");
  make(
      types::kPersistentVolumeClaim, "default",
      read_value(
          R"({"metadata":{"name":"k"},"spec":{"accessModes":["ReadWriteOnce"]},"status":{"phase":"Bound"}})"));
  expect("checkpoints at /ckpt: claim k is not ReadWriteMany");
  expect("warning  job default/gpt: Degraded: one is slow");
  make(types::kPod, "default",
       read_value(R"({"metadata":{"name":"gpt-w0","labels":{"rubato.dev/job-name":"gpt"}},
      "spec":{"nodeName":"n1","containers":[{"name":"worker","image":"y"}]},"status":{"phase":"Pending","containerStatuses":[
      {"name":"worker","image":"y","state":{"waiting":{"reason":"ErrImagePull"}}}]}})"));
  expect("WRONG    job default/gpt: pod gpt-w0 on node n1: ErrImagePull (y)");
}

TEST_F(Doctor, AJobOfOnePodSharesItsCheckpointsWithNobody) {
  make(
      types::kPersistentVolumeClaim, "default",
      read_value(
          R"({"metadata":{"name":"k"},"spec":{"accessModes":["ReadWriteOnce"]},"status":{"phase":"Bound"}})"));
  job("Running", "Training", R"({"name":"c","persistentVolumeClaim":{"claimName":"k"}})",
      R"({"name":"c","mountPath":"/ckpt"})", "", R"("min":8,"max":8,"perPod":8)");
  EXPECT_EQ(examined().find("ReadWriteMany"), std::string::npos);
}

TEST_F(Doctor, AJobThatIsNotThere) {
  choice_.job = "other";
  expect("WRONG    job default/other: does not exist");
}

}  // namespace
}  // namespace rubato::ctl
