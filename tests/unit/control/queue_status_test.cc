#include "operator/control/queue_status.h"

#include "tests/unit/control/fixtures.h"

namespace rubato::control {
namespace {

TEST(QueueStatus, CountsWhatItsJobsHold) {
  World w;
  w.jobs = {job(2, 4,
                R"("allocation":{"epoch":1,"nextOrdinal":3,"gpus":3,"pods":[
       {"name":"job-w0","ordinal":0,"node":"n1","gpuType":"A","gpus":1},
       {"name":"job-w1","ordinal":1,"node":"n2","gpuType":"B","gpus":2}]})"),
            job(1, 1), job(1, 1, "", R"("suspend":true)"), job(1, 1, "", R"("queue":"other")")};
  const auto usage = queue_usage(w);
  const auto& queue = usage.at("default");
  EXPECT_EQ(queue.running, 1);
  EXPECT_EQ(queue.pending, 1);
  EXPECT_EQ(queue.gpus, 3);
  EXPECT_EQ(queue.usage, (std::vector<api::QueueUsage>{{"A", 1}, {"B", 2}}));
  EXPECT_EQ(usage.at("other").pending, 1);
}

TEST(QueueStatus, AJobThatIsDeletedDoesNotWait) {
  JobObject going = *job(1, 1);
  going.job.meta.deletion_time = *parse_rfc3339("2026-11-21T07:01:00Z");
  World w;
  w.jobs = {job(1, 1), std::make_shared<const JobObject>(std::move(going))};
  EXPECT_EQ(queue_usage(w).at("default").pending, 1);
}

TEST(QueueStatus, SaysWhatNothingEnforces) {
  api::TrainingQueue queue;
  queue.meta.generation = 2;
  const auto all = queue_status(queue, {}, {}, {});
  EXPECT_TRUE(api::is_true(all.conditions, "Enforced"));
  EXPECT_EQ(api::find_condition(all.conditions, "Enforced")->reason, "AllEnforced");
  queue.spec.parent = "company";
  queue.spec.weight = 2;
  EXPECT_TRUE(api::is_true(queue_status(queue, {}, {}, {}).conditions, "Enforced"));
  const auto some = queue_status(queue, {}, {.cells = "", .parent = "", .weight = true}, {});
  const auto* enforced = api::find_condition(some.conditions, "Enforced");
  EXPECT_EQ(enforced->status, api::ConditionStatus::kFalse);
  EXPECT_EQ(enforced->reason, "PartlyEnforced");
  EXPECT_NE(enforced->message.find("spec.weight does not count"), std::string::npos);
  const auto refused =
      queue_status(queue, {}, {.cells = "there is no node of GPU type \"A\"", .parent = ""}, {});
  enforced = api::find_condition(refused.conditions, "Enforced");
  EXPECT_EQ(enforced->status, api::ConditionStatus::kFalse);
  EXPECT_EQ(enforced->reason, "CellsRefused");
  EXPECT_EQ(enforced->message,
            "spec.cells is not kept, as if it were not there: there is no node of GPU type \"A\"");
}

TEST(QueueStatus, SaysWhichGuaranteesTheNodesCannotKeep) {
  sched::Node a, b;
  a.gpu_type = "A";
  a.gpus_total = 6;
  b.gpu_type = "B";
  b.gpus_total = 2;
  const std::vector<sched::Node> nodes{a, b};
  api::TrainingQueue queue;
  queue.spec.quotas = {{"*", 8, {}}, {"A", 6, 10}, {"nope", 0, 3}};
  EXPECT_EQ(missing_guarantees(queue.spec, nodes), "");
  queue.spec.quotas = {{"*", 1000000, {}}, {"A", 6, {}}, {"nope", 1, {}}};
  const std::string missing = missing_guarantees(queue.spec, nodes);
  EXPECT_EQ(missing,
            "1000000 GPUs, and the nodes have 8; 1 GPU of type \"nope\", and the nodes have 0");
  queue.spec.weight = 2;
  const auto some = queue_status(
      queue, {}, {.cells = "", .parent = "", .weight = true, .guarantees = missing}, {});
  const auto* enforced = api::find_condition(some.conditions, "Enforced");
  EXPECT_EQ(enforced->status, api::ConditionStatus::kFalse);
  EXPECT_EQ(enforced->reason, "PartlyEnforced");
  EXPECT_NE(enforced->message.find("spec.weight does not count"), std::string::npos);
  EXPECT_NE(enforced->message.find("Also spec.quotas guarantees more than there is: " + missing),
            std::string::npos)
      << enforced->message;
}

std::shared_ptr<const QueueObject> with_spec(const std::string& name, const std::string& parent) {
  auto object = std::make_shared<QueueObject>();
  object->meta.name = object->queue.meta.name = name;
  object->queue.spec.parent = parent;
  return object;
}

TEST(QueueStatus, AParentCountsWhatItsPartsHold) {
  World w;
  w.queues = {with_spec("company", ""),     with_spec("team", "company"),
              with_spec("project", "team"), with_spec("lost", "nowhere"),
              with_spec("a", "b"),          with_spec("b", "a")};
  w.jobs = {job(1, 1,
                R"("allocation":{"epoch":1,"nextOrdinal":1,"gpus":2,"pods":[
       {"name":"job-w0","ordinal":0,"node":"n1","gpuType":"A","gpus":2}]})",
                R"("queue":"project")"),
            job(1, 1, "", R"("queue":"team")"), job(1, 1, "", R"("queue":"a")")};
  const auto usage = queue_usage(w);
  for (const char* name : {"company", "team", "project"}) {
    EXPECT_EQ(usage.at(name).running, 1) << name;
    EXPECT_EQ(usage.at(name).gpus, 2) << name;
    EXPECT_EQ(usage.at(name).usage, (std::vector<api::QueueUsage>{{"A", 2}})) << name;
  }
  EXPECT_EQ(usage.at("company").pending, 1);
  EXPECT_EQ(usage.at("a").pending, 1);
  EXPECT_FALSE(usage.contains("b"));

  const sched::Queues tree = queue_tree(w);
  const auto why = [&](const char* name) { return sched::why_no_parent(tree, tree.at(name)); };
  EXPECT_EQ(why("project"), "");
  EXPECT_EQ(why("lost"), "there is no queue \"nowhere\"");
  EXPECT_EQ(why("a"), "\"b\" is a part of this queue");
  const auto refused =
      queue_status(w.queues[3]->queue, {}, {.cells = "", .parent = why("lost")}, {});
  const auto* enforced = api::find_condition(refused.conditions, "Enforced");
  EXPECT_EQ(enforced->reason, "ParentRefused");
  EXPECT_EQ(enforced->message,
            "spec.parent is not kept, as if it were not there: there is no queue \"nowhere\"");
}

}  // namespace
}  // namespace rubato::control
