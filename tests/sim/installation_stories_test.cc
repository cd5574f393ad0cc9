// Stories of two installations in one cluster: each job has one of them, for all its life.
#include "operator/api/resources.h"
#include "tests/sim/told_stories.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

namespace rubato::sim {
namespace {

std::string owner_of(WholeCluster& cluster, const std::string& job) {
  const auto object = cluster.server().get(api::kTrainingJob, {"default", job});
  if (!object.ok()) return "";
  return (*object)["metadata"]["labels"]["rubato.dev/installation"].string_or("");
}

// The addresses that the job's pods were told to dial: whose they are.
std::set<std::string> makers_of(WholeCluster& cluster, const std::string& job) {
  std::set<std::string> makers;
  const auto listing = cluster.server().list(kube::types::kPod, "default", {});
  for (const auto& pod : listing->items) {
    const json::Value& labels = pod["metadata"]["labels"];
    if (labels[std::string(api::kLabelJob)].string_or("") != job) continue;
    const std::string text = json::dump(pod["spec"]);
    if (text.find("op-a:") != std::string::npos) makers.insert("rubato");
    if (text.find("op-b:") != std::string::npos) makers.insert("other");
  }
  return makers;
}

// Two that know nothing of each other, in one cluster: each job is of one, that which its label
// names or that which was faster. A leader takes over what it sees at its start: its number tells.
TEST(Stories, TwoInstallationsNeverActOnTheSameJob) {
  Scenario scenario = elastic_on_two_nodes();
  scenario.has_two_installations = true;
  scenario.nodes = {{"n0", "fast", 4}, {"n1", "fast", 4}};
  scenario.jobs = {training("ours", 1, 1), training("theirs", 1, 1), training("any", 1, 1)};
  scenario.jobs[0].installation = "rubato";
  scenario.jobs[1].installation = "other";
  WholeCluster cluster(scenario, {.listening = true});
  cluster.start();
  const auto all_train = [&] {
    return members_of(cluster, "ours") == 1 && members_of(cluster, "theirs") == 1 &&
           members_of(cluster, "any") == 1;
  };
  ASSERT_TRUE(cluster.run_until(all_train, kSoon));
  EXPECT_EQ(owner_of(cluster, "ours"), "rubato");
  EXPECT_EQ(owner_of(cluster, "theirs"), "other");
  const std::string winner = owner_of(cluster, "any");
  EXPECT_TRUE(winner == "rubato" || winner == "other") << winner;

  const auto leader_of = [&](const char* job) {
    const auto object = cluster.server().get(api::kTrainingJob, {"default", job});
    return (*object)["status"]["membership"]["leader"].int_or(0);
  };
  EXPECT_EQ(leader_of("ours"), 1);
  EXPECT_EQ(leader_of("theirs"), 1);
  cluster.inject({FaultKind::kOperatorCrash, 0s, 0s, 1, 0});  // of "rubato", which leads again
  ASSERT_TRUE(cluster.run_until([&] { return leader_of("ours") == 2; }, 2 * kSoon));
  cluster.run_until([] { return false; }, kSoon);
  EXPECT_FALSE(cluster.violation());
  EXPECT_EQ(leader_of("theirs"), 1);
  EXPECT_EQ(leader_of("any"), winner == "rubato" ? 2 : 1);
  EXPECT_TRUE(all_train());
  EXPECT_EQ(owner_of(cluster, "any"), winner);
}

// As `kubectl replace` does with a manifest that knows nothing of label and finalizer.
TEST(Stories, AJobThatIsReplacedKeepsItsInstallation) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    Scenario scenario = elastic_on_two_nodes();
    scenario.seed = seed;
    scenario.has_two_installations = true;
    scenario.jobs = {training("ours", 2, 3)};
    scenario.jobs[0].installation = seed % 2 == 0 ? "rubato" : "other";
    WholeCluster cluster(scenario, {.listening = true});
    cluster.start();
    ASSERT_TRUE(cluster.run_until([&] { return members_of(cluster, "ours") >= 2; }, kSoon));
    for (const char* what : {R"({"metadata":{"labels":null,"finalizers":null}})",
                             R"({"metadata":{"labels":{"rubato.dev/installation":"third"}}})"}) {
      ASSERT_TRUE(cluster.server()
                      .patch(api::kTrainingJob, {"default", "ours"}, kube::PatchType::kMerge,
                             *json::parse(what))
                      .ok());
      const std::string& owner = scenario.jobs[0].installation;
      EXPECT_TRUE(cluster.run_until([&] { return owner_of(cluster, "ours") == owner; }, kSoon));
      cluster.run_until([] { return false; }, kSoon);
      EXPECT_EQ(makers_of(cluster, "ours"), std::set<std::string>{owner}) << "seed " << seed;
      EXPECT_GE(members_of(cluster, "ours"), 2u);
      EXPECT_FALSE(cluster.violation()) << *cluster.violation();
    }
  }
}

// A queue that both see has one who writes its status, until its label says whose it is.
TEST(Stories, TwoInstallationsDoNotFightOverAQueue) {
  Scenario scenario = elastic_on_two_nodes();
  scenario.has_two_installations = true;
  scenario.jobs = {training("ours", 1, 1)};  // both at once could be given one GPU (docs/limits.md)
  scenario.jobs[0].installation = "rubato";
  WholeCluster cluster(scenario, {.listening = true});
  cluster.start();
  const auto queue = [&] { return cluster.server().get(api::kTrainingQueue, {"", "default"}); };
  const auto writer = [&] { return (*queue())["status"]["installation"].string_or(""); };
  ASSERT_TRUE(cluster.run_until([&] { return !writer().empty(); }, kSoon));
  cluster.run_until([] { return false; }, kSoon);
  const std::string version = kube::resource_version_of(*queue());
  cluster.run_until([] { return false; }, 2 * kSoon);
  EXPECT_EQ(kube::resource_version_of(*queue()), version);

  const std::string other = writer() == "rubato" ? "other" : "rubato";
  const auto label =
      json::parse(R"({"metadata":{"labels":{"rubato.dev/installation":")" + other + R"("}}})");
  ASSERT_TRUE(cluster.server()
                  .patch(api::kTrainingQueue, {"", "default"}, kube::PatchType::kMerge, *label)
                  .ok());
  EXPECT_TRUE(cluster.run_until([&] { return writer() == other; }, kSoon));
  EXPECT_FALSE(cluster.violation()) << *cluster.violation();
}

TEST(Stories, AJobOfAnInstallationThatIsNotThereIsLeftAlone) {
  Scenario scenario = elastic_on_two_nodes();
  scenario.has_two_installations = true;
  scenario.jobs = {training("nobodys", 1, 1), training("seen", 1, 1)};
  scenario.jobs[0].installation = "third";
  WholeCluster cluster(scenario, {.listening = true});
  cluster.start();
  ASSERT_TRUE(cluster.run_until([&] { return members_of(cluster, "seen") == 1; }, kSoon));
  const auto is_touched = [&] {
    const auto job = cluster.server().get(api::kTrainingJob, {"default", "nobodys"});
    return !job.ok() || (*job)["metadata"]["finalizers"].size() > 0 || (*job)["status"].size() > 0;
  };
  EXPECT_FALSE(cluster.run_until(is_touched, kSoon));
  EXPECT_FALSE(cluster.violation());
}

// Both see it at once: one has it, and keeps it.
TEST(Stories, OfTwoInstallationsThatRaceForAJobOneHasIt) {
  std::set<std::string> winners;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    Scenario scenario = elastic_on_two_nodes();
    scenario.seed = seed;
    scenario.has_two_installations = true;
    scenario.api_delay = 50ms;
    scenario.jobs = {training("wanted", 2, 3)};
    scenario.jobs[0].submit_at = 8s;  // both lead by then
    WholeCluster cluster(scenario, {.listening = true});
    cluster.start();
    const auto trains = [&] { return members_of(cluster, "wanted") >= 2; };
    ASSERT_TRUE(cluster.run_until(trains, 2 * kSoon)) << "seed " << seed;
    const std::string owner = owner_of(cluster, "wanted");
    winners.insert(owner);
    cluster.run_until([&] { return owner_of(cluster, "wanted") != owner; }, kSoon);
    EXPECT_EQ(owner_of(cluster, "wanted"), owner) << "seed " << seed;
    EXPECT_EQ(makers_of(cluster, "wanted"), std::set<std::string>{owner}) << "seed " << seed;
    EXPECT_FALSE(cluster.violation()) << "seed " << seed << ": " << *cluster.violation();
  }
  EXPECT_EQ(winners.size(), 2u) << "no race: one has them all";
}

}  // namespace
}  // namespace rubato::sim
