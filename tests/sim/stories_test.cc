// Stories that are told with care instead of drawn from a seed.
#include "tests/sim/whole_cluster.h"

#include <algorithm>
#include <set>

#include <fmt/core.h>
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

// A worker is killed at the place that its fault names, however short it is there, and the job goes
// on: with the newcomer who is then given the state, too.
TEST(Stories, FaultsStrikeAtTheirPlaces) {
  WholeCluster cluster(elastic_on_two_nodes(), {.listening = true});
  cluster.start();
  const auto killed = static_cast<std::size_t>(FaultKind::kWorkerKilled);
  for (const Phase phase :
       {Phase::kReduce, Phase::kApply, Phase::kCheckpoint, Phase::kDonate, Phase::kFollow}) {
    ASSERT_TRUE(cluster.run_until([&] { return members_of(cluster, "elastic") == 3; }, 3 * kSoon))
        << name_of(phase);
    cluster.inject({.kind = FaultKind::kWorkerKilled, .phase = phase});
    if (phase == Phase::kDonate || phase == Phase::kFollow)  // for there to be a newcomer
      cluster.inject({.kind = FaultKind::kWorkerKilled});
    const auto& count = cluster.coverage().met.at(killed).at(static_cast<std::size_t>(phase));
    ASSERT_TRUE(cluster.run_until([&] { return count == 1; }, 2 * kSoon)) << name_of(phase);
  }
  EXPECT_FALSE(cluster.run_until([] { return false; }, kSoon));
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

// n1 lacks the token file: its worker is refused and its GPU freed, and those who train train on.
// It is tried again later each time, and joins when the file is there.
TEST(Stories, ANewcomerWithoutDataIsRefusedAndDisturbsNobody) {
  WholeCluster cluster(elastic_on_two_nodes(), {.listening = true});
  const auto tried = elastic_holds_on_n1(cluster, 1);
  const auto given_back = elastic_holds_on_n1(cluster, 0);
  const auto pods_on_n1 = [&] {
    const auto& pods = cluster.witness().pods();
    return std::count_if(pods.begin(), pods.end(),
                         [](const auto& pod) { return pod.second.node == "n1"; });
  };
  cluster.start();
  cluster.inject({FaultKind::kCordon, 0s, kSoon, 1, 0});  // the second node comes later
  ASSERT_TRUE(cluster.run_until([&] { return members_of(cluster, "elastic") == 2; }, kSoon));
  cluster.node("n1").set_data(false);
  ASSERT_TRUE(cluster.run_until(tried, 2 * kSoon));
  const std::uint64_t generation = cluster.world("elastic").generations();
  for (const Duration wait : {30s, 60s}) {
    ASSERT_TRUE(cluster.run_until(given_back, kJitter));
    ASSERT_TRUE(cluster.run_until([&] { return pods_on_n1() == 0; }, kGrace + kJitter));
    EXPECT_FALSE(cluster.run_until(tried, wait - kGrace - 2 * kJitter));
    EXPECT_EQ(cluster.world("elastic").generations(), generation);
    ASSERT_TRUE(cluster.run_until(tried, kGrace + kSoon + kJitter));
  }
  cluster.node("n1").set_data(true);
  // The pod of this try may be refused already; then the next one finds the file.
  EXPECT_TRUE(cluster.run_until([&] { return members_of(cluster, "elastic") == 3; }, 3min));
}

// The newest checkpoint rots, and all nodes lose their power: it is named and set aside, and the
// job goes on from the one before, through the states of an undisturbed run.
TEST(Stories, ADamagedCheckpointIsSetAsideAndTheOneBeforeTaken) {
  WholeCluster cluster(elastic_on_two_nodes(), {.listening = true});
  cluster.start();
  const auto status = [&]() -> const json::Value& {
    return cluster.witness().jobs().at("default/elastic").object["status"];
  };
  const auto saved = [&] { return status()["progress"]["checkpointStep"].int_or(0); };
  const auto is_true = [&](std::string_view type) {
    for (const auto& each : status()["conditions"].items())
      if (each["type"].string_or("") == type) return each["status"].string_or("") == "True";
    return false;
  };
  ASSERT_TRUE(cluster.run_until([&] { return members_of(cluster, "elastic") == 3; }, 2 * kSoon));
  ASSERT_TRUE(cluster.run_until([&] { return saved() >= 60; }, 2min));
  const std::int64_t newest = saved();
  const std::string file = fmt::format("/elastic-1/step-{:08}/optimizer.safetensors", newest);
  ASSERT_TRUE(cluster.volume().flip_bit(file, 600, 3).ok()) << file;
  for (std::uint64_t node : {0, 1}) cluster.inject({FaultKind::kPowerCut, 0s, 3s, node, 0});
  ASSERT_TRUE(cluster.run_until([&] { return is_true("CheckpointUnusable"); }, 2min));
  ASSERT_TRUE(cluster.run_until([&] { return saved() > newest; }, 2min));
  EXPECT_FALSE(is_true("CheckpointUnusable")) << "another was written since";
  EXPECT_FALSE(is_true("Failed"));
}

// No node has the file: the job waits without GPUs, and trains once it is there.
TEST(Stories, AJobWithoutDataWaitsAndIsNotFailedAtOnce) {
  WholeCluster cluster(elastic_on_two_nodes(), {.listening = true});
  cluster.start();
  for (const char* node : {"n0", "n1"}) cluster.node(node).set_data(false);
  const auto holds_nothing = [&] {
    return held_on(cluster, "elastic", "n0") + held_on(cluster, "elastic", "n1") == 0;
  };
  ASSERT_TRUE(cluster.run_until([&] { return !holds_nothing(); }, kSoon));
  ASSERT_TRUE(cluster.run_until(holds_nothing, kSoon));
  cluster.run_until([] { return false; }, 2min);
  for (const char* node : {"n0", "n1"}) cluster.node(node).set_data(true);
  EXPECT_TRUE(cluster.run_until([&] { return members_of(cluster, "elastic") == 3; }, 6min));
}

// … and fails, with the reason and the nodes, when half an hour has not brought it.
TEST(Stories, AJobWithoutDataForHalfAnHourFailsAndSaysWhere) {
  WholeCluster cluster(elastic_on_two_nodes(), {.listening = true});
  cluster.start();
  ASSERT_TRUE(cluster.run_until([&] { return held_on(cluster, "elastic", "n0") >= 0; }, kSoon));
  for (const char* node : {"n0", "n1"}) cluster.node(node).set_data(false);
  const auto condition = [&](std::string_view type) -> json::Value {
    for (const auto& each :
         cluster.witness().jobs().at("default/elastic").object["status"]["conditions"].items())
      if (each["type"].string_or("") == type && each["status"].string_or("") == "True") return each;
    return {};
  };
  EXPECT_FALSE(cluster.run_until([&] { return condition("Failed").is_object(); }, 29min));
  EXPECT_EQ(condition("Queued")["reason"].string_or(""), "NodesRefused");
  ASSERT_TRUE(cluster.run_until([&] { return condition("Failed").is_object(); }, 5min));
  EXPECT_EQ(condition("Failed")["reason"].string_or(""), "DataNotFound");
  const std::string message = condition("Failed")["message"].string_or("");
  EXPECT_NE(message.find("n0, n1"), std::string::npos) << message;
  EXPECT_NE(message.find("/data/tokens"), std::string::npos) << message;
}

// n1 has another instruction set: refused, with both processors and both digests named.
TEST(Stories, ANewcomerThatComputesOtherBitsIsRefused) {
  Scenario scenario = elastic_on_two_nodes();
  scenario.nodes[1].isa = "other";
  WholeCluster cluster(scenario, {.listening = true});
  cluster.start();
  cluster.inject({FaultKind::kCordon, 0s, kSoon, 1, 0});
  ASSERT_TRUE(cluster.run_until([&] { return members_of(cluster, "elastic") == 2; }, kSoon));
  ASSERT_TRUE(cluster.run_until(elastic_holds_on_n1(cluster, 1), 2 * kSoon));
  const std::uint64_t generation = cluster.world("elastic").generations();
  ASSERT_TRUE(cluster.run_until(elastic_holds_on_n1(cluster, 0), kJitter));
  EXPECT_EQ(cluster.world("elastic").generations(), generation);
  const json::Value& status =
      cluster.witness().jobs().at("default/elastic").object["status"]["avoidedNodes"];
  ASSERT_EQ(status.items().size(), 1u);
  EXPECT_EQ(status[0]["reason"].string_or(""), "FingerprintMismatch");
  const std::string message = status[0]["message"].string_or("");
  EXPECT_TRUE(message.starts_with("other computes other bits (fingerprint ")) << message;
  EXPECT_NE(message.find(") than model (fingerprint "), std::string::npos) << message;
}

bool all_first_lives(const WholeCluster& cluster, const std::string& job) {
  for (const auto& [pod, workers] : cluster.witness().jobs().at("default/" + job).members)
    for (const auto& [uid, slot, incarnation] : workers)
      if (incarnation != 1) return false;
  return true;
}

// A donor serves four at once; nobody's join is aborted for that.
TEST(Stories, EightNewcomersAtOnceJoin) {
  Scenario scenario;
  scenario.nodes = {{"n0", "fast", 1}, {"n1", "fast", 8}};
  scenario.queues = {{"default", 0}};
  scenario.jobs = {training("growing", 1, 9)};
  WholeCluster cluster(scenario, {.listening = true});
  cluster.start();
  cluster.inject({FaultKind::kCordon, 0s, kSoon, 1, 0});
  ASSERT_TRUE(cluster.run_until([&] { return members_of(cluster, "growing") == 1; }, kSoon));
  ASSERT_TRUE(cluster.run_until([&] { return members_of(cluster, "growing") == 9; }, 2 * kSoon));
  EXPECT_TRUE(all_first_lives(cluster, "growing"));
  EXPECT_LE(cluster.world("growing").generations(), 6u);  // the start, and some joins together
}

// Two of three nodes lose each other, silently: one of them waits, and comes back when they do not.
TEST(Stories, WhoseLinksFailWaitsAndNobodyIsRestarted) {
  Scenario scenario;
  scenario.nodes = {{"n0", "fast", 1}, {"n1", "fast", 1}, {"n2", "fast", 1}};
  scenario.queues = {{"default", 0}};
  scenario.jobs = {training("elastic", 1, 3)};
  WholeCluster cluster(scenario, {.listening = true});
  const auto train = [&](std::size_t pods) {
    return [&cluster, pods] { return members_of(cluster, "elastic") == pods; };
  };
  cluster.start();
  ASSERT_TRUE(cluster.run_until(train(3), kSoon));
  cluster.run_until([] { return false; }, kJitter);  // it has taken steps
  const std::uint64_t generation = cluster.world("elastic").generations();
  cluster.inject({FaultKind::kNodesApart, 0s, 2 * kSoon, 1, 2});
  ASSERT_TRUE(cluster.run_until(train(2), kSoon + 2 * kJitter));
  EXPECT_EQ(cluster.world("elastic").generations(), generation + 1);
  ASSERT_TRUE(cluster.run_until(train(3), 3 * kSoon));
  EXPECT_TRUE(all_first_lives(cluster, "elastic"));
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

// Three of four nodes are lost, so that the one worker that is left computes 12 s for a step; it is
// told to stop in the middle of one.
TEST(Stories, AStopDoesNotWaitForAStepThatIsLongerThanItsGrace) {
  Scenario scenario;
  scenario.nodes = {{"n0", "fast", 1}, {"n1", "fast", 1}, {"n2", "fast", 1}, {"n3", "fast", 1}};
  scenario.queues = {{"default", 0}};
  scenario.jobs = {training("slow", 1, 4)};
  scenario.jobs[0].shape.micro_batches = 480;
  WholeCluster cluster(scenario, {.listening = true});
  cluster.start();
  const auto progress = [&](const char* of) {
    const auto found = cluster.witness().jobs().find("default/slow");
    if (found == cluster.witness().jobs().end()) return std::int64_t{0};
    return found->second.object["status"]["progress"][of].int_or(0);
  };
  const auto trains = [&](std::size_t pods, std::int64_t step) {
    return
        [&, pods, step] { return members_of(cluster, "slow") == pods && progress("step") >= step; };
  };
  ASSERT_TRUE(cluster.run_until(trains(4, 2), 3 * kSoon));
  for (int i = 0; i < 3; ++i) cluster.inject({FaultKind::kPowerCut, 0s, 1h, 1, 0});
  ASSERT_TRUE(cluster.run_until(trains(1, 0), kSoon));
  ASSERT_TRUE(cluster.run_until(trains(1, progress("step") + 2), 6 * kSoon));
  EXPECT_EQ(progress("checkpointStep"), 0);
  cluster.inject({FaultKind::kSuspend, 0s, 1h, 0, 0});
  const auto gave_back = [&] { return held_on(cluster, "slow", "n0") == 0; };
  ASSERT_TRUE(cluster.run_until(gave_back, kGrace + kJitter));
  EXPECT_GT(progress("step"), 0);
  EXPECT_EQ(progress("checkpointStep"), progress("step")) << "nothing committed is lost";
}

}  // namespace
}  // namespace rubato::sim
