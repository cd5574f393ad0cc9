#include "operator/control/plan_check.h"

#include <gtest/gtest.h>

namespace rubato::control {
namespace {

sched::Snapshot one_job(const std::string& policy) {
  sched::Snapshot snapshot{.policy = {.policy = policy}};
  snapshot.state.nodes = {{.id = "n1", .gpu_type = "A", .gpus_total = 4, .free = {.gpus = 4}}};
  snapshot.state.jobs = {{.id = "a", .name = "default/a", .queue = "default", .max = 4}};
  snapshot.state.jobs[0].per_pod.gpus = 1;
  snapshot.state.queues["default"] = {.name = "default"};
  return snapshot;
}

class PlanCheckTest : public ::testing::Test {
 protected:
  double looks(const std::string& policy, MonoTime now) {
    const sched::Snapshot snapshot = one_job(policy);
    check_.look_at(snapshot, sched::make_plan(snapshot.state, snapshot.policy), now);
    return count("holds");
  }
  double count(const std::string& result) {
    return metrics_.counter("rubato_plan_certificates_total", "", {{"result", result}}).value();
  }

  Metrics metrics_;
  PlanCheck check_{metrics_};
};

TEST_F(PlanCheckTest, OnePlanAMinuteIsHeldToItsBound) {
  const MonoTime start{};
  EXPECT_EQ(looks("rubato", start), 1);
  EXPECT_EQ(looks("rubato", start + 59s), 1);
  EXPECT_EQ(looks("rubato", start + 60s), 2);
  EXPECT_EQ(looks("fifo", start + 61s), 2);
  EXPECT_EQ(looks("rubato", start + 62s), 3) << "the first of a policy";
  EXPECT_EQ(count("broken"), 0);
}

// Of every policy.
TEST_F(PlanCheckTest, APlanThatCannotBeDoneIsCounted) {
  sched::Snapshot snapshot = one_job("fifo");
  const sched::Plan plan = sched::make_plan(snapshot.state, snapshot.policy);
  ASSERT_FALSE(plan.actions.empty());
  check_.look_at(snapshot, plan, MonoTime{});
  EXPECT_EQ(count("infeasible"), 0);
  snapshot.state.nodes[0].free.gpus = 0;
  check_.look_at(snapshot, plan, MonoTime{} + 60s);
  EXPECT_EQ(count("infeasible"), 1);
  EXPECT_EQ(count("broken") + count("holds"), 0);
}

TEST_F(PlanCheckTest, APolicyThatMaximisesNothingHasNoCertificate) {
  EXPECT_EQ(looks("fifo", MonoTime{}), 0);
}

}  // namespace
}  // namespace rubato::control
