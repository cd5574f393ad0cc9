// Stories that drawn seeds have found, told with all their numbers, so that they stay what they are
// when the generator draws other ones.
#include "tests/sim/told_stories.h"

#include <algorithm>
#include <string_view>

#include <gtest/gtest.h>

namespace rubato::sim {
namespace {

JobPlan job(const char* name, int min, int max, std::uint64_t steps, std::uint64_t checkpoint_every,
            Duration submit_at) {
  JobPlan plan;
  plan.shape.name = name;
  plan.shape.steps = steps;
  plan.shape.checkpoint_every = checkpoint_every;
  plan.min = min;
  plan.max = max;
  plan.submit_at = submit_at;
  return plan;
}

RunResult expect_good_end(const Scenario& scenario) {
  RunResult result = WholeCluster(scenario, {.listening = true}).run();
  EXPECT_TRUE(result.ok) << result.what;
  return result;
}

// That a story still comes where it was told for.
void expect_told(const RunResult& result, std::string_view words) {
  EXPECT_TRUE(std::ranges::any_of(result.story, [&](const std::string& line) {
    return line.find(words) != std::string::npos;
  })) << words;
}

// A pod goes, and its leader dies before it has taken that in. The next one takes the pod out of
// the allocation, gives its GPU to another job and dies; the third, which was started in between,
// does not see that yet, and makes the pod again. Told with times where it once had the n-th writes
// of its operators; planted_rows sees to it that it still comes there.
TEST(FoundStories, AGpuIsNotPromisedTwiceByALeaderWhoseJobsAreOld) {
  Scenario scenario;
  scenario.seed = 901636;
  scenario.nodes = {{"n0", "fast", 4}, {"n1", "fast", 4}, {"n2", "fast", 4}, {"n3", "fast", 2}};
  scenario.queues = {{"default", 0}, {"small", 4}};
  scenario.jobs = {job("job-0", 2, 5, 200, 28, 0s), job("job-1", 10, 10, 75, 14, 5006ms)};
  scenario.jobs[1].priority_class = "high";
  scenario.faults = {{FaultKind::kPodForced, 1306ms, 1344ms, 408, 550},
                     {FaultKind::kOperatorCrash, 1320ms, 0s, 1, 0},
                     {FaultKind::kPodFrozen, 4854ms, 3849ms, 524, 938},
                     {FaultKind::kApiFlaky, 7111ms, 1686ms, 217, 883},
                     {FaultKind::kSlowWatch, 7900ms, 10849ms, 318, 2990},
                     {FaultKind::kOperatorCrash, 10152ms, 0s, 1, 0}};
  const RunResult result = expect_good_end(scenario);
  expect_told(result, "job-0: allocation 2 of 4 GPUs");
  expect_told(result, "op-b_1 leads (epoch 2)");
  expect_told(result, "op-a_2 leads (epoch 3)");
}

// Leaders fence a worker for generations that they cannot write any more; the last one forms a
// lower generation without it, and what it is told in that one it refuses. It has the n-th write of
// an operator as that was then; JobMachineChange.AllRiseToAGenerationThatANewcomerDoesNotRefuse
// comes there for certain.
TEST(FoundStories, AWorkerThatIsFencedHigherThanTheRecordJoins) {
  Scenario scenario;
  scenario.seed = 903070;
  scenario.nodes = {{"n0", "fast", 2}, {"n1", "fast", 2}, {"n2", "fast", 2}, {"n3", "fast", 2}};
  scenario.queues = {{"default", 0}, {"small", 3}};
  scenario.policy = PolicyPlan{.round_seconds = 5, .growth_pause_seconds = 1, .grown_per_round = 2};
  scenario.jobs = {job("job-0", 1, 2, 90, 13, 0s), job("job-1", 2, 3, 88, 23, 6811ms),
                   job("job-2", 1, 2, 98, 11, 3545ms), job("job-3", 3, 5, 103, 26, 4383ms)};
  scenario.api_delay = 40ms;
  scenario.clocks_differ = true;
  scenario.faults = {{FaultKind::kCrashAtWrite, 0s, 2383ms, 600, 194},
                     {FaultKind::kApiAway, 4243ms, 8748ms, 440, 560},
                     {FaultKind::kOperatorStop, 4912ms, 4127ms, 346, 935},
                     {FaultKind::kPodFrozen, 20001ms, 3619ms, 603, 403},
                     {FaultKind::kSlowNetwork, 21614ms, 1971ms, 470, 743},
                     {FaultKind::kApiAway, 22343ms, 2818ms, 944, 422}};
  expect_good_end(scenario);
}

// The store is restored from a backup. Until its pods, nodes and jobs were listed again the caches
// showed those of before: the scheduler gave GPUs that pods of the restored store have.
TEST(FoundStories, NothingIsScheduledOnCachesOfAStoreThatWasRestored) {
  Scenario scenario;
  scenario.seed = 3243;
  scenario.nodes = {{"n0", "fast", 2},
                    {"n1", "fast", 2},
                    {"n2", "fast", 4},
                    {"n3", "fast", 2},
                    {"n4", "fast", 4}};
  scenario.queues = {{"default", 0}, {"small", 4}};
  scenario.jobs = {job("job-0", 4, 4, 570, 26, 0s)};
  scenario.jobs[0].per_pod = 2;
  scenario.jobs[0].priority_class = "high";
  scenario.jobs[0].queue = "small";
  scenario.faults = {{FaultKind::kApiFlaky, 2848ms, 3482ms, 98, 199},
                     {FaultKind::kWorkerKilled, 3795ms, 4425ms, 171, 314},
                     {FaultKind::kPowerCut, 30356ms, 8315ms, 585, 51},
                     {FaultKind::kStoreRestored, 38724ms, 34606ms, 416, 517},
                     {FaultKind::kPodCrash, 55558ms, 0ms, 231, 0}};
  expect_good_end(scenario);
}

// Seed 61297: a leader dies once it has given GPUs to a job that the next one's caches do not show
// at all yet. That one took the job for deleted, and gave its GPU to another.
TEST(FoundStories, AJobThatTheCachesOfANewLeaderDoNotShowYetKeepsItsGpus) {
  Scenario scenario;
  scenario.nodes = {{"n0", "fast", 1}, {"n1", "fast", 1}};
  scenario.queues = {{"default", 0}};
  scenario.jobs = {training("first", 1, 1), training("hidden", 1, 1)};
  scenario.jobs[1].submit_at = kSoon;
  for (const std::uint64_t late : {0u, 3u}) {  // either replica may lead first
    WholeCluster cluster(scenario, {.listening = true});
    cluster.start();
    cluster.run_until([] { return false; }, kSoon - kJitter);
    ASSERT_EQ(held_on(cluster, "first", "n0"), 1);
    // Events of jobs come 100 s late.
    cluster.inject({FaultKind::kSlowWatch, 0s, 10 * kGang, late, 19'990});
    const auto is_given = [&] { return held_on(cluster, "hidden", "n1") == 1; };
    if (!cluster.run_until(is_given, kSoon)) continue;  // it leads
    cluster.inject({FaultKind::kOperatorCrash, 0s, kSoon, 1, 0});
    cluster.inject({FaultKind::kPowerCut, 0s, 10 * kGang, 0, 0});
    cluster.run_until([] { return false; }, 2 * kSoon);
    ASSERT_TRUE(cluster.run_until([] { return true; }, 1s)) << "a GPU is promised twice";
  }
}

// Seed 12910: who joins a job whose Secret was deleted while it trained waited for it without end,
// for other pods of the job were there.
TEST(FoundStories, AJobGrowsThoughItsSecretWasDeleted) {
  Scenario scenario;
  scenario.nodes = {{"n0", "fast", 4}};
  scenario.queues = {{"default", 0}};
  scenario.jobs = {training("grows", 1, 1)};
  WholeCluster cluster(scenario, {.listening = true});
  cluster.start();
  const auto trains_with = [&](std::size_t members) {
    return cluster.run_until([&] { return members_of(cluster, "grows") == members; }, 2 * kSoon);
  };
  ASSERT_TRUE(trains_with(1));
  cluster.inject({.kind = FaultKind::kSecretDeleted});
  cluster.inject({.kind = FaultKind::kScale, .more = 1});
  EXPECT_TRUE(trains_with(2));
  // Deleted after the pod is made, and before its node starts it.
  cluster.inject({.kind = FaultKind::kNodeIdle, .spell = 5s});
  cluster.inject({.kind = FaultKind::kScale, .more = 2});
  ASSERT_TRUE(cluster.run_until([&] { return held_on(cluster, "grows", "n0") == 3; }, kSoon));
  cluster.run_until([] { return false; }, 2s);
  cluster.inject({.kind = FaultKind::kSecretDeleted});
  EXPECT_TRUE(trains_with(3));
}

// Seed 854842: a job that is too large for the cluster was resized to sizes of which some fit. The
// largest was more than its step has micro-batches: the API server refused all, and the job waited.
TEST(FoundStories, AJobThatNeverFitsIsResizedToWhatItsStepHasMicroBatchesFor) {
  Scenario scenario;
  scenario.nodes = {{"n0", "fast", 4}, {"n1", "fast", 2}, {"n2", "fast", 2}};
  scenario.queues = {{"default", 0}};
  scenario.jobs = {job("job-0", 9, 9, 53, 10, 0s)};
  scenario.jobs[0].shape.micro_batches = 9;
  scenario.jobs[0].can_finish = false;
  scenario.faults = {{FaultKind::kResize, 1686ms, 0s, 654, 419}};
  expect_good_end(scenario);
}

}  // namespace
}  // namespace rubato::sim
