// Stories that are told with care instead of drawn from a seed.
#include "tests/sim/sim_host.h"
#include "tests/sim/told_stories.h"

#include <algorithm>

#include <fmt/core.h>
#include <gtest/gtest.h>

namespace rubato::sim {
namespace {

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

// One job makes room for another in a limit that both stand under, and not on its nodes, while
// requests fail and answers are lost.
TEST(Stories, ALimitHoldsWhenWhoMakesRoomInItDidNot) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    Scenario scenario;
    scenario.seed = seed;
    scenario.nodes = {{"n0", "fast", 6}, {"n1", "fast", 2}};
    scenario.queues = {{"whole", 7}, {"default", 0, 0, "whole"}, {"small", 0, 0, "whole"}};
    scenario.jobs = {training("wide", 3, 6), training("urgent", 2, 2)};
    scenario.jobs[0].per_pod = 3;  // too many for n1
    scenario.jobs[1].queue = "small";
    scenario.jobs[1].priority_class = "high";
    scenario.jobs[1].submit_at = 2 * kJitter;
    WholeCluster cluster(scenario, {.listening = true});
    cluster.start();
    ASSERT_TRUE(cluster.run_until([&] { return members_of(cluster, "wide") == 2; }, 2 * kJitter));
    for (const std::uint64_t replica : {0, 1})
      cluster.inject({FaultKind::kApiFlaky, 0s, 2 * kJitter, replica, 29});
    int most = 0;
    const auto trains = [&] {
      int sum = 0;
      for (const auto& [key, job] : cluster.witness().jobs())
        if (job.allocation) sum += job.allocation->gpus;
      most = std::max(most, sum);
      return members_of(cluster, "urgent") == 2;
    };
    ASSERT_TRUE(cluster.run_until(trains, 2 * kSoon)) << "seed " << seed;
    EXPECT_LE(most, 7) << "seed " << seed;
  }
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
  const auto queued = [&]() -> json::Value {
    for (const auto& each :
         cluster.witness().jobs().at("default/elastic").object["status"]["conditions"].items())
      if (each["type"].string_or("") == "Queued") return each;
    return {};
  };
  ASSERT_TRUE(
      cluster.run_until([&] { return queued()["reason"].string_or("") == "NodesRefused"; }, kSoon));
  const std::string message = queued()["message"].string_or("");
  for (const char* word : {"n0, n1", "/data/tokens", "is tried again at", "the job fails at"})
    EXPECT_NE(message.find(word), std::string::npos) << word << " in: " << message;
  const auto has_warning = [&](std::string_view reason) {
    const auto events = cluster.server().list(kube::types::kEvent, "default", {}, {});
    return events.ok() &&
           std::any_of(events->items.begin(), events->items.end(), [&](const auto& event) {
             return event["reason"].string_or("") == reason &&
                    event["type"].string_or("") == "Warning";
           });
  };
  for (const char* reason : {"WorkerRefused", "NodesRefused"})
    EXPECT_TRUE(cluster.run_until([&] { return has_warning(reason); }, kSoon)) << reason;
  // Tried again, later each time, and refused again.
  const auto tries = [&] {
    return cluster.witness()
        .jobs()
        .at("default/elastic")
        .object["status"]["avoidedNodes"][0]["times"]
        .int_or(0);
  };
  EXPECT_FALSE(cluster.run_until([&] { return tries() > 1; }, 25s - kSoon));
  EXPECT_TRUE(cluster.run_until([&] { return tries() == 3; }, 3min));
  for (const char* node : {"n0", "n1"}) cluster.node(node).set_data(true);
  EXPECT_TRUE(cluster.run_until([&] { return members_of(cluster, "elastic") == 3; }, 6min));
  EXPECT_EQ(queued()["status"].string_or(""), "False");
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

// Without n1 it has not enough, and n1 has not the file: while n1 is not tried again it is said
// that no GPU of others is waited for.
TEST(Stories, AJobThatHasNotEnoughWithoutTheNodesItAvoidsSaysSo) {
  Scenario scenario = elastic_on_two_nodes();
  scenario.jobs[0].min = 3;
  scenario.nodes[1].illness = Illness::kNoData;
  WholeCluster cluster(scenario, {.listening = true});
  cluster.start();
  const auto queued = [&]() -> json::Value {
    for (const auto& each :
         cluster.witness().jobs().at("default/elastic").object["status"]["conditions"].items())
      if (each["type"].string_or("") == "Queued" && each["status"].string_or("") == "True")
        return each;
    return {};
  };
  ASSERT_TRUE(cluster.run_until(elastic_holds_on_n1(cluster, 1), kSoon));
  const auto is_told = [&] { return queued()["reason"].string_or("") == "NodesAvoided"; };
  ASSERT_TRUE(cluster.run_until(is_told, 5min)) << queued()["reason"].string_or("");
  const std::string message = queued()["message"].string_or("");
  EXPECT_NE(message.find("have 2 in all (for now none on n1"), std::string::npos) << message;
  cluster.node("n1").set_data(true);
  EXPECT_TRUE(cluster.run_until([&] { return members_of(cluster, "elastic") == 3; }, 10min));
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

// A step thread hangs, and one loss after the other begins a recovery in which its control thread
// answers. The others, whom its links do not reach, give up one generation after the other.
TEST(Stories, WhoHangsWhileOthersAreLostIsFound) {
  Scenario scenario;
  scenario.queues = {{"default", 0}};
  for (int i = 0; i < 12; ++i) scenario.nodes.push_back({fmt::format("n{}", i), "fast", 1});
  scenario.jobs = {training("big", 2, 12)};
  scenario.jobs[0].shape.micro_batches = 24;
  WholeCluster cluster(scenario, {.listening = true});
  cluster.start();
  ASSERT_TRUE(cluster.run_until([&] { return members_of(cluster, "big") == 12; }, 2 * kSoon));
  cluster.run_until([] { return false; }, kJitter);  // it has taken steps
  cluster.inject({FaultKind::kWorkerHangs, 0s, 0s, 2, 1});
  for (std::uint64_t lost : {11, 10, 9, 8, 7}) {
    cluster.run_until([] { return false; }, 2s);
    cluster.inject({FaultKind::kPodCrash, 0s, 0s, lost, 0});
  }
  const std::uint64_t step = cluster.world("big").highest_step();
  const auto steps_on = [&] { return cluster.world("big").highest_step() > step + 10; };
  EXPECT_TRUE(cluster.run_until(steps_on, 100s));
}

// One of two hangs while the first generation begins, and the other's node loses its power before
// that stands. Nobody else can be asked what is on disk.
TEST(Stories, WhoHangsBeforeThereIsAGenerationIsFound) {
  Scenario scenario;
  scenario.nodes = {{"n0", "fast", 1}, {"n1", "fast", 1}};
  scenario.queues = {{"default", 0}};
  scenario.jobs = {training("elastic", 1, 2)};
  WholeCluster cluster(scenario, {.listening = true});
  const auto hangs = [&](const char* name) {
    return std::ranges::any_of(cluster.node(name).containers(), [](const auto& entry) {
      return entry.second->workers != nullptr && entry.second->workers->hangs();
    });
  };
  cluster.start();
  cluster.inject({.kind = FaultKind::kWorkerHangs, .phase = Phase::kFence});
  ASSERT_TRUE(cluster.run_until([&] { return hangs("n0") || hangs("n1"); }, kSoon));
  cluster.inject({FaultKind::kPowerCut, 0s, 10min, hangs("n0") ? 1u : 0u, 0});
  const auto steps_on = [&] { return cluster.world("elastic").highest_step() > 10; };
  EXPECT_TRUE(cluster.run_until(steps_on, 100s));
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
  const std::int64_t committed = progress("step");
  EXPECT_GT(committed, 0);
  const auto is_saved = [&] { return progress("checkpointStep") >= committed; };
  EXPECT_TRUE(cluster.run_until(is_saved, kJitter)) << "nothing committed is lost";
}

}  // namespace
}  // namespace rubato::sim
