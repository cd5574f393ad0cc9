// Every field of a status is written by the operator: one that is described and never set is a
// promise to whoever reads it.
#include "apiserver/memory/memory_client.h"
#include "common/executor.h"
#include "operator/api/codec.h"
#include "operator/api/crd.h"
#include "operator/api/resources.h"
#include "operator/control/cluster_status.h"
#include "operator/control/plan_executor.h"
#include "operator/control/pod_failures.h"
#include "operator/coordinator/record.h"
#include "tests/unit/control/status_facts.h"

#include <set>

namespace rubato::control {
namespace {

using coordinator::Phase;

// "progress.step" …: what the schema describes, without the conditions' own fields.
void add_described(const api::ObjectSchema& object, const std::string& prefix,
                   std::set<std::string>& out) {
  for (const api::FieldSchema& field : object.fields()) {
    const std::string path = prefix + field.name;
    const api::TypeSchema& type = field.type;
    const bool is_list = type.type == api::ValueType::kArray;
    const api::ObjectSchema* inner = is_list ? type.items.at(0).object : type.object;
    if (inner != nullptr)
      add_described(*inner, path + ".", out);
    else
      out.insert(path);
  }
}

void add_written(const json::Value& value, const std::string& prefix, std::set<std::string>& out) {
  for (const json::Value& item : value.items()) add_written(item, prefix, out);
  for (const auto& [name, inner] : value.members()) {
    const std::string path = prefix + name;
    out.insert(path);
    add_written(inner, path + ".", out);
  }
}

void expect_all(const api::ObjectSchema& status, const std::set<std::string>& written) {
  std::set<std::string> described;
  add_described(status, "", described);
  for (const std::string& path : described)
    EXPECT_TRUE(written.contains(path)) << "nobody writes status." << path;
}

api::TrainingJobStatus while_it_trains(const char* kind) {
  JobFacts facts;
  const auto object = job(1, 4, kAllocated);
  facts.job = &object->job;
  facts.profile = object->profile;
  facts.now = *parse_rfc3339("2026-11-21T08:00:00Z");
  facts.view = view(Phase::kTraining, 2);
  for (auto& member : facts.view->members) member.gpu_type = "NVIDIA-H100-80GB-HBM3";
  facts.view->tokens = 41 * 128;
  facts.view->validation_step = 40;
  facts.view->validation_loss = 3.5;
  facts.view->noise_scale = 4096;
  facts.view->has_checkpoint = true;
  facts.view->checkpoint_step = 40;
  facts.view->recomputed_steps = 2;
  facts.view->rescales = 1;
  facts.view->generation = 5;
  facts.newest_pod_made = MonoTime{1h} - 9s;
  facts.view->changes = {{.generation = 5,
                          .kind = kind,
                          .reason = "pod job-w1 joins",
                          .from = 1,
                          .to = 2,
                          .stall_seconds = 0.25,
                          .formed_at = MonoTime{1h}}};
  facts.gpu_seconds = coordinator::GpuSeconds{
      .useful = 90, .queue = 1, .rescale = 2, .failure = 3, .checkpoint = 4, .straggling = 5};
  facts.own_failures = 1;
  facts.priority = api::JobPriority{.class_name = "high", .value = 100, .preempts = true};
  facts.avoided_nodes = {{.node = "n9",
                          .reason = "DataNotFound",
                          .message = "no such file",
                          .times = 1,
                          .since = facts.now,
                          .until = facts.now + 30s}};
  return status_of(facts);
}

json::Value record_of(std::uint32_t members) {
  coordinator::Record record{.generation = 2,
                             .leader = 3,
                             .phase = "Training",
                             .members = {},
                             .previous = {},
                             .seq = 4,
                             .step = 41,
                             .fingerprint = "2-cpu",
                             .stop_steps = 100,
                             .ended_at = 41,
                             .rescales = 1,
                             .recomputed_steps = 2,
                             .failures = 1,
                             .crashes = {{"p", 1}}};
  for (std::uint32_t i = 0; i < members; ++i)
    record.members.push_back({{"p", i}, 1, "job-w0", "n1", "A"});
  record.previous = record.members;
  return coordinator::to_json(record);
}

TEST(StatusFields, EachIsWritten) {
  std::set<std::string> written;
  const auto add = [&](const api::TrainingJobStatus& s) {
    add_written(api::encode(s), "", written);
  };
  add(while_it_trains("start"));
  add(while_it_trains("join"));
  add(status(*job(2, 4, kAllocated), view(Phase::kParked, 1)));
  add(status(*job(2, 4, kAllocated), view(Phase::kFinished, 2)));
  add(status(*job(2, 4), {},
             JobVerdict{.outcome = sched::Outcome::kNotNow, .expected_start = WallTime{}}));
  for (const std::uint32_t members : {2, 100})
    add_written(json::Value::object({{"membership", record_of(members)}}), "", written);
  const auto object = job(2, 4, kAllocated);
  api::TrainingJobStatus decided;
  decided.allocation =
      allocation_after(object->job,
                       {.kind = sched::ActionKind::kPreempt,
                        .add = {{.node = "n1", .gpu_type = "A", .gpus = 1, .cell = "node"}},
                        .remove = {0}},
                       4, *parse_rfc3339("2026-11-21T08:00:00Z"));
  count_left(object->job, {}, *decided.allocation);
  const json::Value failed = parse(
      R"({"metadata":{"name":"job-w0","namespace":"ns","uid":"u"},"spec":{},"status":{"phase":"Failed"}})");
  const kube::Pod pod = *kube::Pod::decode(failed);
  count_left(object->job, {{"job-w0", &pod}}, *decided.allocation);
  add(decided);
  // By JobPass itself: held by JobSecretTest and the stories of two installations.
  for (const char* others : {"installation", "credentials.notAfter", "credentials.trust"})
    written.insert(others);

  expect_all(api::TrainingJobStatus::schema(), written);
}

// Those of queues and policies, as a round writes them.
class RoundStatus : public ::testing::Test {
 protected:
  // An object of the kind, with this inside of its spec.
  template <class Object>
  std::shared_ptr<const Object> made(const kube::ResourceType& type, const std::string& name,
                                     const std::string& spec) {
    const auto created =
        server_.create(type, "",
                       parse(R"({"apiVersion":"rubato.dev/v1alpha1","kind":")" + type.kind +
                             R"(","metadata":{"name":")" + name + R"("},"spec":{)" + spec + "}}"));
    EXPECT_TRUE(created.ok());
    return std::make_shared<const Object>(*Object::decode(created.value().object));
  }
  std::set<std::string> written(const kube::ResourceType& type, const std::string& name) {
    std::set<std::string> paths;
    add_written(server_.get(type, {"", name}).value()["status"], "", paths);
    return paths;
  }
  RoundStatus() {
    for (const api::Kind& kind : api::kinds())
      EXPECT_TRUE(server_.create(kube::types::kCustomResourceDefinition, "", api::crd(kind)).ok());
    world_.wall = *parse_rfc3339("2026-11-21T08:00:00Z");
  }

  ThreadExecutor executor_;
  kube::MemoryServer server_{executor_.clock()};
  kube::MemoryClient client_{server_, executor_};
  StatusDiff diff_;
  const Installation installation_;
  World world_;
};

TEST_F(RoundStatus, EachFieldOfAQueueIsWritten) {
  world_.nodes = {node("n1", 4)};
  world_.jobs = {job(2, 4, kAllocated), job(1, 1)};
  world_.queues = {made<QueueObject>(api::kTrainingQueue, "default",
                                     R"("quotas":[{"gpuType":"*","guaranteed":2}])")};
  const sched::Snapshot snapshot{capture(world_, config()), {}};
  sched::Plan plan;
  plan.queue_shares["default"] = 3;
  write_queues(client_, diff_, world_, snapshot, plan, installation_);
  expect_all(api::TrainingQueueStatus::schema(), written(api::kTrainingQueue, "default"));
}

class RefusedPatches : public kube::FaultHook {
 public:
  std::optional<Error> before(const kube::Operation& operation) override {
    if (operation.verb != kube::Verb::kPatch) return std::nullopt;
    ++asked;
    return Error(Code::kDenied, "not allowed");
  }
  std::optional<Error> after(const kube::Operation&) override { return std::nullopt; }

  int asked = 0;
};

TEST_F(RoundStatus, OneThatIsRefusedIsNotWrittenInEachRound) {
  RefusedPatches refused;
  kube::MemoryClient client(server_, executor_, &refused);
  world_.queues = {made<QueueObject>(api::kTrainingQueue, "default", "")};
  const sched::Snapshot snapshot{capture(world_, config()), {}};
  for (int second = 0; second <= 20; ++second) {
    world_.now = MonoTime{std::chrono::seconds(second)};
    write_queues(client, diff_, world_, snapshot, {}, installation_);
  }
  EXPECT_EQ(refused.asked, 3) << "each ten seconds";
}

TEST_F(RoundStatus, EachFieldOfAPolicyIsWritten) {
  world_.policies = {
      made<PolicyObject>(api::kSchedulingPolicy, "default", R"("parameters":{"maxLoad":1.5})")};
  const auto in_force = policy_of(config(), world_.policies[0]->policy.spec);
  ASSERT_TRUE(in_force.ok());
  write_policies(client_, diff_, world_, *in_force, "", installation_);
  expect_all(api::SchedulingPolicyStatus::schema(), written(api::kSchedulingPolicy, "default"));
}

}  // namespace
}  // namespace rubato::control
