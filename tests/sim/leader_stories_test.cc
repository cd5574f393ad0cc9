// Stories of leaders that die, sleep or lose their Lease, and of a store that is restored.
#include "operator/api/resources.h"
#include "tests/sim/told_stories.h"

#include <algorithm>
#include <functional>
#include <set>

#include <fmt/core.h>
#include <gtest/gtest.h>

namespace rubato::sim {
namespace {

constexpr std::uint64_t kWrites = 160;  // a moment before and one after each
constexpr Duration kReign = 8s;         // from a leader's death to that of the next one

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

// A worker that crashes while nobody leads is charged to maxRestarts by the next leader.
TEST(Stories, ACrashBetweenTwoLeadersIsCharged) {
  for (const int later_ms : {0, 100, 1000, 3000}) {
    Scenario scenario;
    scenario.nodes = {{"n0", "fast", 1}, {"n1", "fast", 1}};
    scenario.queues = {{"default", 0}};
    scenario.jobs = {training("crashing", 2, 2)};
    WholeCluster cluster(scenario, {.listening = true});
    cluster.start();
    ASSERT_TRUE(cluster.run_until([&] { return members_of(cluster, "crashing") == 2; }, kSoon));
    cluster.run_until([] { return false; }, kSoon);  // it trains
    cluster.inject({FaultKind::kOperatorCrash, 0s, 0s, 1, 0});
    cluster.run_until([] { return false; }, std::chrono::milliseconds(later_ms));
    cluster.inject({FaultKind::kWorkerKilled, 0s, 0s, 0, 0});
    cluster.run_until([] { return false; }, 2 * kSoon);
    const json::Value& job = cluster.witness().jobs().at("default/crashing").object;
    EXPECT_EQ(job["status"]["restarts"]["count"].int_or(0), 1)
        << "killed " << later_ms << " ms after the leader";
  }
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

// A pod is gone when its leader dies; the second leader gives its GPU to another job, and dies too;
// the third one was started between the two, and its cache is late: it has never seen the pod, and
// what the first allocation promised is not its to give any more, whatever else it has seen.
TEST(Stories, ALeaderPlacesPodsAfterTheNewestAllocationOnly) {
  Scenario scenario;
  scenario.nodes = {{"n0", "fast", 1}, {"n1", "fast", 1}};
  scenario.queues = {{"default", 0}};
  scenario.jobs = {training("elastic", 1, 2), training("next", 1, 1)};
  scenario.jobs[1].priority_class = "high";
  scenario.jobs[1].submit_at = kSoon;
  for (int more = 0; more < 14; ++more) {
    // Either replica may lead first: events reach this one 5.5 s late, one after the other.
    const std::uint64_t third = more % 2 == 0 ? 0 : 3;
    WholeCluster cluster(scenario, {.listening = true});
    cluster.start();
    ASSERT_TRUE(cluster.run_until([&] { return members_of(cluster, "elastic") == 2; }, kSoon));
    cluster.run_until([] { return false; }, kSoon - kJitter);
    cluster.inject({FaultKind::kOperatorCrash, 0s, 0s, 1, 0});
    for (const FaultKind kind : {FaultKind::kPodDeleted, FaultKind::kPodCrash})
      cluster.inject({kind, 0s, 0s, 1, 0});
    cluster.run_until([] { return false; }, kJitter + 1s);  // the first is back
    cluster.inject({FaultKind::kSlowWatch, 0s, 5 * kGang, third, 990});
    const auto takes_over = [&] { return held_on(cluster, "next", "n1") == 1; };
    EXPECT_TRUE(cluster.run_until(takes_over, 2 * kSoon));
    cluster.run_until([] { return false; }, more * kJitter);  // of 3 s: an event comes each 5.5 s
    cluster.inject({FaultKind::kOperatorCrash, 0s, 0s, 1, 0});
    cluster.run_until([] { return false; }, kSoon);
    ASSERT_TRUE(cluster.run_until([] { return true; }, 1s)) << "a GPU is promised twice";
  }
}

// Of a job that waits nobody takes the membership over. What an earlier leader decided on it, and
// the API server still works on, must not come after what a new one gives to others (soak seed
// 919747): its allocation is written anew, with what stands.
TEST(Stories, ALeaderShutsOutLateDecisionsOnAJobThatWaits) {
  Scenario scenario;
  scenario.nodes = {{"n0", "fast", 1}};
  scenario.queues = {{"default", 0}};
  scenario.jobs = {training("waits", 1, 1), training("next", 1, 1)};
  scenario.jobs[1].priority_class = "high";
  scenario.jobs[1].submit_at = kSoon;
  WholeCluster cluster(scenario, {.listening = true});
  cluster.start();
  ASSERT_TRUE(cluster.run_until([&] { return members_of(cluster, "waits") == 1; }, kSoon));
  ASSERT_TRUE(cluster.run_until([&] { return members_of(cluster, "next") == 1; }, 2 * kSoon));
  const auto& seen = cluster.witness().jobs().at("default/waits");
  const api::Allocation before = *seen.allocation;
  ASSERT_TRUE(before.pods.empty());
  cluster.inject({FaultKind::kOperatorCrash, 0s, 0s, 1, 0});
  const auto is_shut_out = [&] { return seen.allocation->epoch > before.epoch; };
  ASSERT_TRUE(cluster.run_until(is_shut_out, kSoon));
  EXPECT_GT(*seen.allocation->leader_transition, *before.leader_transition);
  EXPECT_TRUE(seen.allocation->pods.empty());
}

// Of one that trains: no GPU is given away before its membership is the new leader's, or, where
// that cannot be, its allocation. The witness looks at each that is given.
TEST(Stories, ALeaderGivesNothingAwayBeforeAllMembershipsAreItsOwn) {
  constexpr int kTraining = 3;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    Scenario scenario;
    scenario.seed = seed;
    scenario.nodes = {{"n0", "fast", kTraining + 1}};
    scenario.queues = {{"default", 0}};
    scenario.jobs = {training("next", 1, 1)};
    scenario.jobs.back().submit_at = kSoon;
    for (int i = 0; i < kTraining; ++i)
      scenario.jobs.push_back(training("trains-" + std::to_string(i), 1, 1));
    WholeCluster cluster(scenario, {.listening = true});
    cluster.start();
    const auto all_train = [&] {
      for (int i = 0; i < kTraining; ++i)
        if (members_of(cluster, "trains-" + std::to_string(i)) != 1) return false;
      return true;
    };
    const MonoTime crash = cluster.now() + kSoon - 500ms;
    ASSERT_TRUE(cluster.run_until(all_train, kSoon));
    ASSERT_TRUE(cluster.run_until([&] { return cluster.now() >= crash; }, kSoon));
    // Takeovers wait in the server.
    for (const std::uint64_t replica : {0, 1})
      cluster.inject({FaultKind::kLateWrites, 0s, kSoon, replica, 0});
    cluster.inject({FaultKind::kOperatorCrash, 0s, 5s, 1, 0});
    ASSERT_TRUE(cluster.run_until([&] { return members_of(cluster, "next") == 1; }, 3 * kSoon))
        << "seed " << seed;
  }
}

// The uids of pods that are there and are to stay.
std::set<std::string> pods_that_stay(const WholeCluster& cluster) {
  std::set<std::string> uids;
  for (const auto& [key, pod] : cluster.witness().pods())
    if (!pod.deleting && !pod.finished) uids.insert(pod.uid);
  return uids;
}

// With the chart's Lease a leader that sleeps for some seconds leads on, or, after ten, gives way
// to the other. It has heard nobody meanwhile, and agents have hung up; they all train.
TEST(Stories, ALeaderThatSleptTakesNobodyForDead) {
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    for (const Duration sleep : {1s, 3s, 6s, 10s}) {
      Scenario scenario;
      scenario.seed = seed;
      scenario.nodes = {{"n0", "fast", 1}, {"n1", "fast", 1}, {"n2", "fast", 1}};
      scenario.queues = {{"default", 0}};
      scenario.jobs = {training("elastic", 1, 3)};
      scenario.lease = kChartLease;
      WholeCluster cluster(scenario, {.listening = true});
      cluster.start();
      const auto all_train = [&] { return members_of(cluster, "elastic") == 3; };
      ASSERT_TRUE(cluster.run_until(all_train, kSoon));
      cluster.run_until([] { return false; }, kSoon);
      const std::set<std::string> before = pods_that_stay(cluster);
      const std::uint64_t generation = cluster.witness().jobs().at("default/elastic").generation;
      cluster.inject({FaultKind::kOperatorFrozen, 0s, sleep, 1, 0});
      const auto somebody_is_lost = [&] {
        return !all_train() || pods_that_stay(cluster) != before ||
               cluster.witness().jobs().at("default/elastic").generation != generation;
      };
      EXPECT_FALSE(cluster.run_until(somebody_is_lost, 2 * kSoon))
          << "seed " << seed << ", asleep for " << std::chrono::duration<double>(sleep).count();
    }
  }
}

// ---- What an epoch must be above

Scenario three_that_train(std::uint64_t seed) {
  Scenario scenario;
  scenario.seed = seed;
  scenario.nodes = {{"n0", "fast", 1}, {"n1", "fast", 1}, {"n2", "fast", 1}};
  scenario.queues = {{"default", 0}};
  scenario.jobs = {training("elastic", 1, 3)};
  return scenario;
}

// A pod is lost while everything else is as it should be again: is it replaced?
bool repairs(WholeCluster& cluster) {
  const auto train = [&](std::size_t pods) {
    return [&cluster, pods] { return members_of(cluster, "elastic") == pods; };
  };
  cluster.inject({FaultKind::kPodCrash, 0s, 0s, 1, 0});
  return cluster.run_until(train(2), kSoon) && cluster.run_until(train(3), 2 * kSoon);
}

TEST(Stories, AnotherLeaderTakesOverWhenTheLeaseWasDeleted) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    WholeCluster cluster(three_that_train(seed), {.listening = true});
    cluster.start();
    const auto all_train = [&] { return members_of(cluster, "elastic") == 3; };
    ASSERT_TRUE(cluster.run_until(all_train, kSoon));
    for (int i = 0; i < 2; ++i) {  // so that records and agents name more than a first leader's
      cluster.inject({FaultKind::kOperatorCrash, 0s, 0s, 1, 0});
      cluster.run_until([] { return false; }, kSoon);
    }
    const std::uint64_t leader = cluster.witness().jobs().at("default/elastic").leader;
    EXPECT_GE(leader, 3u);
    cluster.inject({FaultKind::kLeaseLost, 0s, 0s, 0, 0});
    cluster.run_until([] { return false; }, kSoon);
    EXPECT_GT(cluster.witness().jobs().at("default/elastic").leader, leader) << "seed " << seed;
    EXPECT_TRUE(repairs(cluster)) << "seed " << seed;
  }
}

// An installation is removed and made again in another namespace, with the same trust: the Lease
// there begins to count anew, while all that the one before led trains on.
TEST(Stories, ALeaderOfAnotherNamespaceTakesOver) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    WholeCluster cluster(three_that_train(seed), {.listening = true});
    cluster.start();
    const auto all_train = [&] { return members_of(cluster, "elastic") == 3; };
    ASSERT_TRUE(cluster.run_until(all_train, kSoon));
    for (int i = 0; i < 2; ++i) {
      cluster.inject({FaultKind::kOperatorCrash, 0s, 0s, 1, 0});
      cluster.run_until([] { return false; }, kSoon);
    }
    ASSERT_TRUE(all_train());
    const SeenJob& job = cluster.witness().jobs().at("default/elastic");
    const std::uint64_t leader = job.leader;
    const std::uint64_t generation = job.generation;
    const std::set<std::string> before = pods_that_stay(cluster);
    EXPECT_GE(leader, 3u);
    cluster.move_operators();
    cluster.run_until([] { return false; }, 2 * kSoon);
    EXPECT_GT(job.leader, leader) << "seed " << seed;
    EXPECT_EQ(job.generation, generation) << "seed " << seed;
    EXPECT_EQ(pods_that_stay(cluster), before) << "seed " << seed;
    EXPECT_TRUE(repairs(cluster)) << "seed " << seed;
    EXPECT_FALSE(cluster.violation()) << *cluster.violation();
  }
}

// Between the backup and its return two leaders came and went, pods were made and generations
// formed: their epochs, names and numbers are used up, and only nodes and agents know of them.
TEST(Stories, AJobGoesOnWhenTheStoreIsRestored) {
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    for (const int operators_that_forget : {0, 1, 2}) {
      WholeCluster cluster(three_that_train(seed), {.listening = true});
      cluster.start();
      const auto all_train = [&] { return members_of(cluster, "elastic") == 3; };
      ASSERT_TRUE(cluster.run_until(all_train, kSoon));
      cluster.run_until([] { return false; }, kSoon);
      cluster.inject({FaultKind::kStoreRestored, 0s, 2min, 0, 0});
      cluster.run_until([] { return false; }, 1s);
      ASSERT_TRUE(repairs(cluster));
      cluster.inject({FaultKind::kOperatorCrash, 0s, 0s, 1, 0});
      cluster.run_until([] { return false; }, kSoon);
      ASSERT_TRUE(all_train());
      const auto generation = [&] {
        return cluster.witness().jobs().at("default/elastic").generation;
      };
      ASSERT_TRUE(cluster.run_until([&, now = generation()] { return generation() < now; }, 2min));
      if (operators_that_forget == 1)
        cluster.inject({FaultKind::kOperatorCrash, 0s, 0s, 1, 0});
      else if (operators_that_forget == 2)  // agents alone know under which epoch they were led
        cluster.inject({FaultKind::kLeaseLost, 0s, 0s, 0, 0});
      cluster.run_until([] { return false; }, 2 * kSoon);
      EXPECT_TRUE(cluster.run_until(all_train, 2 * kSoon)) << "seed " << seed;
      EXPECT_TRUE(repairs(cluster)) << "seed " << seed;
    }
  }
}

// ---- Ends

TEST(Stories, ThePolicyInForceOutlivesTheLeaderThoughAnotherIsRefused) {
  Scenario scenario = elastic_on_two_nodes();
  scenario.policy = PolicyPlan{};
  WholeCluster cluster(scenario, {.listening = true});
  cluster.start();
  const kube::Key key{"", "default"};
  const auto is_in_force = [&](const std::string& reason) {
    return [&cluster, key, reason] {
      const auto object = cluster.server().get(api::kSchedulingPolicy, key);
      const json::Value status = object.ok() ? (*object)["status"] : json::Value();
      return status["active"].string_view_or("") == "fifo" &&
             status["conditions"][0]["reason"].string_view_or("") == reason;
    };
  };
  const auto ask_for = [&](const std::string& policy) {
    ASSERT_TRUE(cluster.server()
                    .patch(api::kSchedulingPolicy, key, kube::PatchType::kMerge,
                           *json::parse(R"({"spec":{"policy":")" + policy + R"("}})"))
                    .ok());
  };
  cluster.run_until([] { return false; }, kSoon / 4);
  ask_for("fifo");
  ASSERT_TRUE(cluster.run_until(is_in_force("Loaded"), kSoon));
  ask_for("gandiva");  // needs what workers cannot do
  ASSERT_TRUE(cluster.run_until(is_in_force("Refused"), kSoon));
  for (int leaders = 0; leaders < 2; ++leaders) {
    cluster.inject({FaultKind::kOperatorCrash, 0s, 0s, 1, 0});
    EXPECT_FALSE(cluster.run_until([&] { return !is_in_force("Refused")(); }, kSoon));
  }
}

}  // namespace
}  // namespace rubato::sim
