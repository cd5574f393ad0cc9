// JobWorld: an in-memory API server with one TrainingJob, "gpt" in "default", whose statuses a test
// writes, in virtual time.
#pragma once

#include "operator/api/crd.h"
#include "operator/api/kinds.h"
#include "operator/api/resources.h"
#include "tests/unit/kube/sim_fixture.h"

#include <string>

#include <gtest/gtest.h>

namespace rubato::ctl {

inline json::Value parsed(const std::string& text) {
  auto value = json::parse(text);
  EXPECT_TRUE(value.ok()) << text;
  return value.value_or(json::Value());
}

struct JobWorld : kube::SimWorld {
  JobWorld() : SimWorld(1) {
    make(kube::types::kCustomResourceDefinition, "", api::crd(*api::find_kind("TrainingJob")));
    make(api::kTrainingJob, "default", parsed(R"({
        "apiVersion":"rubato.dev/v1alpha1","kind":"TrainingJob","metadata":{"name":"gpt"},"spec":{
        "gpus":{"min":1,"max":4},"training":{"model":{"family":"gpt2","layers":1,"hidden":8,"heads":1},
        "data":{"path":"/data/t"},"batch":{"global":8,"micro":1,"sequenceLength":16},"stop":{"steps":9},
        "checkpoint":{"path":"/ckpt"}},"template":{"spec":{"containers":[{"name":"worker","image":"x"}]}}}})"));
  }
  // Past the fault hook, as set_status().
  void make(const kube::ResourceType& type, const std::string& ns, const json::Value& object) {
    const auto made = server.create(type, ns, object);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
  }
  void set_status(const kube::ResourceType& type, const std::string& name,
                  const std::string& status) {
    EXPECT_TRUE(server
                    .patch(type, {"default", name}, kube::PatchType::kMerge,
                           parsed(R"({"status":)" + status + "}"), {.subresource = "status"})
                    .ok());
  }
};

}  // namespace rubato::ctl
