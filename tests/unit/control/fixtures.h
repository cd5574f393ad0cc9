// Small worlds for the tests of operator/control, written as the JSON that a server would send.
#pragma once

#include "operator/control/cluster_view.h"

#include <string>

#include <gtest/gtest.h>

namespace rubato::control {

inline json::Value parse(const std::string& text) {
  auto value = json::parse(text);
  if (!value.ok()) ADD_FAILURE() << value.error().to_string() << " in " << text;
  return value.ok() ? *value : json::Value();
}

inline std::shared_ptr<const kube::Node> node(const std::string& name, int slots,
                                              const std::string& more = "") {
  const json::Value value =
      parse(R"({"metadata":{"name":")" + name + R"(","uid":"u-)" + name +
            R"(","labels":{"nvidia.com/gpu.product":"A"}},"spec":{)" + more +
            R"(},"status":{"allocatable":{"cpu":"8","memory":"8Gi","rubato.dev/slot":")" +
            std::to_string(slots) + R"("},"conditions":[{"type":"Ready","status":"True"}]}})");
  return std::make_shared<const kube::Node>(*kube::Node::decode(value));
}

// One whose annotation says when its maintenance begins.
inline std::shared_ptr<const kube::Node> maintained(const std::string& name,
                                                    const std::string& at) {
  kube::Node with_time = *node(name, 2);
  with_time.meta.annotations = {{"rubato.dev/maintenance-at", at}};
  return std::make_shared<const kube::Node>(std::move(with_time));
}

inline std::shared_ptr<const kube::Pod> pod(const std::string& name, const std::string& on,
                                            const std::string& phase,
                                            const std::string& owner_uid = "",
                                            const std::string& more_meta = "") {
  const std::string owner =
      owner_uid.empty()
          ? ""
          : R"(,"ownerReferences":[{"kind":"TrainingJob","name":"job","controller":true,"uid":")" +
                owner_uid + R"("}])";
  const json::Value value = parse(
      R"({"metadata":{"name":")" + name + R"(","namespace":"ns","uid":"p-)" + name + "\"" + owner +
      more_meta + R"(},"spec":{"nodeName":")" + on +
      R"(","containers":[{"name":"worker","resources":{"requests":{"rubato.dev/slot":"1","cpu":"1"}}}]},"status":{"phase":")" +
      phase + R"("}})");
  return std::make_shared<const kube::Pod>(*kube::Pod::decode(value));
}

// A job of `min` to `max` GPUs; `status` is the inside of its status object.
inline std::shared_ptr<const JobObject> job(int min, int max, const std::string& status = "",
                                            const std::string& spec = "") {
  const json::Value value = parse(
      R"({"metadata":{"name":"job","namespace":"ns","uid":"job-uid-1","resourceVersion":"7","generation":3,
         "creationTimestamp":"2026-11-21T07:00:00Z","finalizers":["rubato.dev/teardown"],
         "labels":{"rubato.dev/installation":"rubato"}},
         "spec":{"gpus":{"min":)" +
      std::to_string(min) + R"(,"max":)" + std::to_string(max) + "}" +
      (spec.empty() ? "" : "," + spec) +
      R"(,"training":{"model":{"family":"gpt2","layers":1,"hidden":8,"heads":1},"data":{"path":"/d"},
         "batch":{"global":8,"micro":1,"sequenceLength":16},"stop":{"steps":100}},
         "template":{"spec":{"containers":[{"name":"worker","image":"x","resources":{"requests":{"cpu":"500m"}}}]}}},
         "status":{"observedGeneration":3)" +
      (status.empty() ? "" : "," + status) + "}}");
  auto decoded = JobObject::decode(value);
  if (!decoded.ok()) ADD_FAILURE() << decoded.error().to_string();
  return std::make_shared<const JobObject>(*decoded);
}

// For the inside of a status: what was measured on so many GPUs of type A.
inline std::string measured(int gpus, int tokens_per_second) {
  return R"("performance":{"byType":[{"gpuType":"A","gpus":)" + std::to_string(gpus) +
         R"(,"tokensPerSecond":)" + std::to_string(tokens_per_second) + "}]}";
}

// Another job that is like this one.
inline JobObject again(const JobObject& object, const std::string& uid) {
  JobObject other = object;
  other.job.meta.uid = other.meta.uid = uid;
  return other;
}

inline Config config() {
  Config c;
  c.gpu_resource = "rubato.dev/slot";
  c.coordinator_addresses = {"127.0.0.1:1", "127.0.0.1:2"};
  return c;
}

}  // namespace rubato::control
