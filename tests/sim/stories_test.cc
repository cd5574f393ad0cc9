// Stories that are told with care instead of drawn from a seed.
#include "tests/sim/whole_cluster.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace rubato::sim {
namespace {

constexpr Duration kSoon = 20s;         // more than any reaction takes
constexpr Duration kGang = 20s;         // pods are waited for so long (replica.cc)
constexpr Duration kJitter = 3s;        // rounds, kubelets, late messages
constexpr std::uint64_t kWrites = 160;  // a moment before and one after each
constexpr Duration kReign = 8s;         // from a leader's death to that of the next one
constexpr Duration kGrace = 8s;         // of jobs here (whole_cluster.cc)

JobPlan training(const std::string& name, int min, int max) {
  JobPlan job;
  job.shape.name = name;
  job.shape.steps = 100'000;
  job.min = min;
  job.max = max;
  return job;
}

// GPUs of the job that its allocation has on the node; -1: there is no such job.
int held_on(const WholeCluster& cluster, const std::string& job, const std::string& node) {
  const auto found = cluster.witness().jobs().find("default/" + job);
  if (found == cluster.witness().jobs().end()) return -1;
  if (!found->second.allocation) return 0;
  const auto& pods = found->second.allocation->pods;
  return static_cast<int>(
      std::count_if(pods.begin(), pods.end(), [&](const auto& pod) { return pod.node == node; }));
}

std::size_t members_of(const WholeCluster& cluster, const std::string& job) {
  const auto found = cluster.witness().jobs().find("default/" + job);
  return found == cluster.witness().jobs().end() ? 0 : found->second.members.size();
}

// n0 has what the job needs, n1 the GPU that it may have besides.
Scenario elastic_on_two_nodes() {
  Scenario scenario;
  scenario.nodes = {{"n0", "fast", 2}, {"n1", "fast", 1}};
  scenario.queues = {{"default", 0}};
  scenario.jobs = {training("elastic", 2, 3)};
  return scenario;
}

auto elastic_holds_on_n1(const WholeCluster& cluster, int gpus) {
  return [&cluster, gpus] { return held_on(cluster, "elastic", "n1") == gpus; };
}

// n1 is there and starts nothing: its GPU is taken back, and tried again later each time.
TEST(Stories, AGpuWhosePodDoesNotStartIsTakenBack) {
  WholeCluster cluster(elastic_on_two_nodes(), {.listening = true});
  const auto tried = elastic_holds_on_n1(cluster, 1);
  const auto given_back = elastic_holds_on_n1(cluster, 0);
  cluster.start();
  cluster.inject({FaultKind::kNodeIdle, 0s, 6 * kGang - kJitter, 1, 0});
  ASSERT_TRUE(cluster.run_until(tried, kSoon));
  EXPECT_FALSE(cluster.run_until(given_back, kGang - kJitter));
  for (const Duration hold : {kGang, 2 * kGang}) {
    ASSERT_TRUE(cluster.run_until(given_back, kGang + kJitter));
    EXPECT_EQ(held_on(cluster, "elastic", "n0"), 2);
    EXPECT_FALSE(cluster.run_until(tried, hold - kJitter));
    ASSERT_TRUE(cluster.run_until(tried, 2 * kJitter + kSoon));
  }
  // The node works again before the third time is up.
  EXPECT_FALSE(cluster.run_until(given_back, 3 * kGang)) << "its pod was started";
}

// n1 starts its pod, and no word of it reaches an operator.
TEST(Stories, AGpuWhosePodIsNotHeardOfIsTakenBack) {
  WholeCluster cluster(elastic_on_two_nodes(), {.listening = true});
  const auto tried = elastic_holds_on_n1(cluster, 1);
  const auto given_back = elastic_holds_on_n1(cluster, 0);
  cluster.start();
  for (std::uint64_t replica : {0, 1})
    cluster.inject({FaultKind::kNodeCutOperator, 0s, 3 * kGang - kJitter, 1, replica});
  ASSERT_TRUE(cluster.run_until(tried, kSoon));
  EXPECT_FALSE(cluster.run_until(given_back, kGang - kJitter));
  ASSERT_TRUE(cluster.run_until(given_back, 2 * kJitter));
  EXPECT_EQ(members_of(cluster, "elastic"), 2u);
  ASSERT_TRUE(cluster.run_until(tried, kGang + kSoon));
  EXPECT_TRUE(
      cluster.run_until([&] { return members_of(cluster, "elastic") == 3; }, kGang + kSoon));
}

// No leader lives as long as a gang has time; true when it came to be `done` within `limit`.
bool comes_through_leaders(WholeCluster& cluster, const std::function<bool()>& done,
                           Duration limit) {
  for (; limit > 0s; limit -= kReign) {
    if (cluster.run_until(done, std::min(kReign, limit))) return true;
    cluster.inject({FaultKind::kOperatorCrash, 0s, 0s, 1, 0});
  }
  return false;
}

// The time of a pod that does not start does not begin anew with each leader …
TEST(Stories, AGpuWhosePodDoesNotStartIsTakenBackWhoeverLeads) {
  WholeCluster cluster(elastic_on_two_nodes(), {.listening = true});
  cluster.start();
  cluster.inject({FaultKind::kNodeIdle, 0s, 6 * kGang, 1, 0});
  ASSERT_TRUE(cluster.run_until(elastic_holds_on_n1(cluster, 1), kSoon));
  EXPECT_FALSE(comes_through_leaders(cluster, elastic_holds_on_n1(cluster, 0), kGang - kJitter));
  EXPECT_TRUE(comes_through_leaders(cluster, elastic_holds_on_n1(cluster, 0), 2 * kReign));
  EXPECT_EQ(held_on(cluster, "elastic", "n0"), 2);
}

// … nor does that of a gang.
TEST(Stories, AGangThatDoesNotStartGivesItsGpusBackWhoeverLeads) {
  Scenario scenario = elastic_on_two_nodes();
  scenario.jobs = {training("elastic", 3, 3)};
  WholeCluster cluster(scenario, {.listening = true});
  cluster.start();
  cluster.inject({FaultKind::kNodeIdle, 0s, 6 * kGang, 1, 0});
  ASSERT_TRUE(cluster.run_until(elastic_holds_on_n1(cluster, 1), kSoon));
  const auto given_back = [&] {
    return held_on(cluster, "elastic", "n0") + held_on(cluster, "elastic", "n1") == 0;
  };
  EXPECT_FALSE(comes_through_leaders(cluster, given_back, kGang - kJitter));
  EXPECT_TRUE(comes_through_leaders(cluster, given_back, 2 * kReign));
}

// A leader who finds all pods of a gang running when its time is up waits for word of them first.
TEST(Stories, AGangThatRunsIsHeardByTheNextLeader) {
  WholeCluster cluster(elastic_on_two_nodes(), {.listening = true});
  cluster.start();
  for (std::uint64_t node : {0, 1})
    for (std::uint64_t replica : {0, 1})
      cluster.inject({FaultKind::kNodeCutOperator, 0s, kGang + 2 * kJitter, node, replica});
  const auto held = [&] { return held_on(cluster, "elastic", "n0") == 2; };
  ASSERT_TRUE(cluster.run_until(held, kSoon));
  EXPECT_FALSE(cluster.run_until([&] { return !held(); }, kGang - kJitter));
  EXPECT_EQ(members_of(cluster, "elastic"), 0u);
  cluster.inject({FaultKind::kOperatorCrash, 0s, 0s, 1, 0});
  EXPECT_TRUE(
      cluster.run_until([&] { return !held() || members_of(cluster, "elastic") > 0; }, 2 * kReign));
  EXPECT_TRUE(held());
}

// A node dies, and the leader as soon as the others train without it, before it has said that the
// pod is lost: the next one knows it by its silence.
TEST(Stories, APodIsReplacedWhoseLossOnlyADeadLeaderKnew) {
  Scenario scenario;
  scenario.nodes = {{"n0", "fast", 1}, {"n1", "fast", 1}, {"n2", "fast", 1}};
  scenario.queues = {{"default", 0}};
  scenario.jobs = {training("elastic", 1, 2)};
  WholeCluster cluster(scenario, {.listening = true});
  cluster.start();
  const auto train = [&](std::size_t pods) {
    return [&cluster, pods] { return members_of(cluster, "elastic") == pods; };
  };
  ASSERT_TRUE(cluster.run_until(train(2), kSoon));
  cluster.run_until([] { return false; }, kGang);  // its pods are no longer new
  cluster.inject({FaultKind::kPowerCut, 0s, 1h, 1, 0});
  ASSERT_TRUE(cluster.run_until(train(1), kSoon));
  ASSERT_EQ(held_on(cluster, "elastic", "n1"), 1);
  cluster.inject({FaultKind::kOperatorCrash, 0s, 0s, 1, 0});
  EXPECT_TRUE(cluster.run_until(train(2), kReign + kGang / 2 + kJitter));  // not a gang's time more
  EXPECT_EQ(held_on(cluster, "elastic", "n2"), 1);
}

// Whatever a newcomer was told before its leader died, the next one brings it in, and does not wait
// until it could be called stuck.
TEST(Stories, AJoinOutlivesTheLeader) {
  for (std::uint64_t crash = 0; crash < kWrites; ++crash) {
    Scenario scenario;
    scenario.nodes = {{"n0", "fast", 1}, {"n1", "fast", 1}};
    scenario.queues = {{"default", 0}};
    scenario.jobs = {training("growing", 1, 2)};
    scenario.faults = {{FaultKind::kCrashAtWrite, 0s, 0s, 0, crash}};
    WholeCluster cluster(scenario, {.listening = true});
    cluster.start();
    cluster.inject({FaultKind::kCordon, 0s, kSoon / 2, 1, 0});  // the second GPU comes later
    EXPECT_TRUE(
        cluster.run_until([&] { return members_of(cluster, "growing") == 2; }, 3 * kSoon / 2))
        << "crash at write " << crash;
  }
}

// The node's end is known to the leader that died alone; the next one does not wait for its pod.
TEST(Stories, ADeletedJobDoesNotWaitForAPodOnADeadNodeAfterAFailOver) {
  Scenario scenario;
  scenario.nodes = {{"n0", "fast", 1}, {"n1", "fast", 1}};
  scenario.queues = {{"default", 0}};
  scenario.jobs = {training("doomed", 1, 2), training("too-large", 9, 9)};
  WholeCluster cluster(scenario, {.listening = true});
  cluster.start();
  const auto on_both = [&] {
    return held_on(cluster, "doomed", "n0") == 1 && held_on(cluster, "doomed", "n1") == 1;
  };
  ASSERT_TRUE(cluster.run_until(on_both, kSoon));
  cluster.run_until([] { return false; }, kSoon);  // it trains
  cluster.inject({FaultKind::kPowerCut, 0s, 1h, 1, 0});
  ASSERT_TRUE(cluster.run_until([&] { return held_on(cluster, "doomed", "n1") == 0; }, kSoon));
  cluster.inject({FaultKind::kOperatorCrash, 0s, 0s, 0, 0});
  cluster.run_until([] { return false; }, kSoon);  // another leads
  cluster.inject({FaultKind::kJobDeleted, 0s, 0s, 0, 0});
  EXPECT_TRUE(
      cluster.run_until([&] { return held_on(cluster, "doomed", "n0") == -1; }, kGrace - kJitter));
}

}  // namespace
}  // namespace rubato::sim
