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

TEST(QueueStatus, SaysWhatNothingEnforces) {
  api::TrainingQueue queue;
  queue.meta.generation = 2;
  const auto all = queue_status(queue, {}, "", {});
  EXPECT_TRUE(api::is_true(all.conditions, "Enforced"));
  EXPECT_EQ(api::find_condition(all.conditions, "Enforced")->reason, "AllEnforced");
  queue.spec.parent = "company";
  queue.spec.weight = 2;
  const auto some = queue_status(queue, {}, "", {});
  const auto* enforced = api::find_condition(some.conditions, "Enforced");
  EXPECT_EQ(enforced->status, api::ConditionStatus::kFalse);
  EXPECT_EQ(enforced->reason, "PartlyEnforced");
  EXPECT_NE(enforced->message.find("spec.weight, spec.parent"), std::string::npos);
  const auto refused = queue_status(queue, {}, "there is no node of GPU type \"A\"", {});
  enforced = api::find_condition(refused.conditions, "Enforced");
  EXPECT_EQ(enforced->status, api::ConditionStatus::kFalse);
  EXPECT_EQ(enforced->reason, "CellsRefused");
  EXPECT_EQ(enforced->message,
            "spec.cells is not kept, as if it were not there: there is no node of GPU type \"A\"");
}

}  // namespace
}  // namespace rubato::control
