// Every field of a TrainingJob's status is written by the operator: one that is described and never
// set is a promise to whoever reads it.
#include "operator/api/codec.h"
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

  std::set<std::string> described;
  add_described(api::TrainingJobStatus::schema(), "", described);
  for (const std::string& path : described)
    EXPECT_TRUE(written.contains(path)) << "nobody writes status." << path;
}

}  // namespace
}  // namespace rubato::control
