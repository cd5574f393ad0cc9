// An operator of some namespaces, of which one may not be read: it is being deleted, say, and the
// RoleBinding there went first.
#include "apiserver/memory/memory_client.h"
#include "common/testing/sim_network.h"
#include "operator/api/codec.h"
#include "operator/api/crd.h"
#include "operator/api/kinds.h"
#include "operator/api/resources.h"
#include "operator/control/operator.h"
#include "tests/unit/control/fixtures.h"

#include <algorithm>
#include <set>

namespace rubato::control {
namespace {

struct RulesOfNamespaces : kube::FaultHook {
  std::string denied;  // namespace; "": none
  std::function<bool(const kube::Operation&)> refused = [](const auto&) { return false; };
  std::optional<Error> before(const kube::Operation& operation) override {
    if (refused(operation)) return Error(Code::kDenied, "forbidden").set_reason("Forbidden");
    if (denied.empty() || operation.key.ns != denied) return std::nullopt;
    return Error(Code::kDenied, "forbidden").set_reason("Forbidden");
  }
  std::optional<Error> after(const kube::Operation& operation) override {
    if (denied.empty() || operation.key.ns != denied) return std::nullopt;
    return Error(Code::kUnavailable, "the watch has ended");
  }
};

class DeniedNamespaceTest : public ::testing::Test {
 protected:
  DeniedNamespaceTest() {
    for (const api::Kind& kind : api::kinds())
      make(kube::types::kCustomResourceDefinition, "", api::crd(kind));
    for (const std::string ns : {"rubato-system", "a", "b"})
      make(kube::types::kNamespace, "", parse(R"({"metadata":{"name":")" + ns + R"("}})"));
  }
  void make(const kube::ResourceType& type, const std::string& ns, const json::Value& object) {
    const auto made = server_.create(type, ns, object);
    if (!made.ok()) ADD_FAILURE() << made.error().message << " in " << json::dump(object);
  }
  void make_job(const std::string& ns, const std::string& name) {
    make(
        api::kTrainingJob, ns,
        json::Value::object({{"apiVersion", api::kApiVersion},
                             {"kind", "TrainingJob"},
                             {"metadata", json::Value::object({{"name", name}, {"namespace", ns}})},
                             {"spec", api::encode(control::job(1, 2)->job.spec)}}));
  }
  OperatorSettings settings() {
    OperatorSettings out;
    out.identity = "operator-0";
    out.installation.namespaces = {"a", "b"};
    out.config = config();
    out.coordinator_listen = {"operator", 7443};
    out.coordinator_advertised = "operator:7443";
    out.record = [this](const sched::Snapshot& snapshot, const sched::Plan&) {
      decided_on_.clear();
      for (const sched::Job& job : snapshot.state.jobs) decided_on_.insert(job.name);
    };
    return out;
  }
  void make_node(const std::string& name, int gpus) {
    make(kube::types::kNode, "",
         parse(R"({"metadata":{"name":")" + name + R"("},"spec":{},"status":{"allocatable":{
                 "cpu":"8","memory":"8Gi","pods":"10","rubato.dev/slot":")" +
               std::to_string(gpus) + R"("},"conditions":[{"type":"Ready","status":"True"}]}})"));
  }
  std::int64_t held(const std::string& ns, const std::string& name) {
    const auto job = server_.get(api::kTrainingJob, {ns, name});
    return job.ok() ? (*job)["status"]["allocation"]["gpus"].int_or(0) : 0;
  }
  std::int64_t bound() {
    const auto pods = server_.list(kube::types::kPod, "", {}, {});
    return std::count_if(pods->items.begin(), pods->items.end(), [](const json::Value& pod) {
      return !pod["spec"]["nodeName"].string_or("").empty();
    });
  }
  bool decides_on(const std::set<std::string>& jobs) {
    return sim_.run_until([&] { return decided_on_ == jobs; }, 5min);
  }

  testing::SimExecutor sim_{1};
  testing::SimProcess& process_ = sim_.process("operator");
  testing::SimNetwork wires_{sim_, 1};
  std::unique_ptr<net::Network> network_ = wires_.attach(process_, "operator");
  kube::MemoryServer server_{process_.clock()};
  RulesOfNamespaces rules_;
  kube::MemoryClient client_{server_, process_, &rules_};
  kube::MemoryClient lease_client_{server_, process_};
  Metrics metrics_;
  std::set<std::string> decided_on_;  // by the latest round
};

TEST_F(DeniedNamespaceTest, TheOthersGoOn) {
  make_job("a", "first");
  make_job("b", "first");
  rules_.denied = "b";
  Operator replica(client_, lease_client_, process_, *network_, metrics_, settings());
  Status ended = ok();
  Task task =
      process_.spawn("operator", [&](const std::stop_token& stop) { ended = replica.run(stop); });
  ASSERT_TRUE(decides_on({"a/first"})) << "a new process";
  rules_.denied = "";
  ASSERT_TRUE(decides_on({"a/first", "b/first"}));
  rules_.denied = "b";
  ASSERT_TRUE(decides_on({"a/first"})) << "one that has seen its jobs";
  make_job("a", "second");
  ASSERT_TRUE(decides_on({"a/first", "a/second"}));
  task.request_stop();
  task.join();
  EXPECT_TRUE(ended.ok());
}

TEST_F(DeniedNamespaceTest, WhatWasPromisedThereIsForOthersAndIsNotTakenBack) {
  make_node("n1", 1);
  make_job("b", "first");
  rules_.refused = [&](const kube::Operation& operation) {  // its pod stays unmade
    return operation.verb == kube::Verb::kCreate && operation.type.plural == "pods" &&
           operation.key.ns == "b" && held("b", "first") > 0;
  };
  Operator replica(client_, lease_client_, process_, *network_, metrics_, settings());
  Task task =
      process_.spawn("operator", [&](const std::stop_token& stop) { (void)replica.run(stop); });
  ASSERT_TRUE(sim_.run_until([&] { return held("b", "first") == 1; }, 1min));
  rules_.denied = "b";
  make_job("a", "first");
  ASSERT_TRUE(sim_.run_until([&] { return bound() == 1; }, 5min)) << "on the GPU of b/first";
  EXPECT_EQ(held("a", "first"), 1);
  rules_.denied = "";
  rules_.refused = [](const auto&) { return false; };
  EXPECT_FALSE(sim_.run_until([&] { return bound() > 1; }, 3min)) << "two on one GPU";
  task.request_stop();
  task.join();
}

TEST_F(DeniedNamespaceTest, ADoubtAboutAJobThereStopsNobody) {
  make_node("n1", 1);
  make_job("b", "first");
  Operator replica(client_, lease_client_, process_, *network_, metrics_, settings());
  Task task =
      process_.spawn("operator", [&](const std::stop_token& stop) { (void)replica.run(stop); });
  ASSERT_TRUE(sim_.run_until([&] { return bound() == 1; }, 1min));
  rules_.refused = [](const kube::Operation& operation) {
    return operation.verb == kube::Verb::kGet && operation.key.ns == "b";
  };
  const auto back = parse(R"({"status":{"allocation":{"epoch":0}}})");
  ASSERT_TRUE(server_
                  .patch(api::kTrainingJob, {"b", "first"}, kube::PatchType::kMerge, back,
                         {.subresource = "status"})
                  .ok());
  sim_.run_for(1s);
  rules_.denied = "b";
  make_job("a", "first");
  EXPECT_TRUE(decides_on({"a/first"}));
  task.request_stop();
  task.join();
}

}  // namespace
}  // namespace rubato::control
