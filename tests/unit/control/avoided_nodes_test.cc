#include "operator/control/avoided_nodes.h"

#include "operator/api/codec.h"

#include <gtest/gtest.h>

namespace rubato::control {
namespace {

using Nodes = std::vector<api::AvoidedNode>;
constexpr Duration kPatience = 5min;

const WallTime kNow = *parse_rfc3339("2026-11-21T08:00:00Z");

UselessPod unstarted(const std::string& node) {
  return {node, std::string(kPodGivenUp), "did not start", kPatience};
}
UselessPod refused(const std::string& node, const std::string& reason = "DataNotFound") {
  return {node, reason, "cannot open /data/tokens", kRefusalWait};
}

TEST(AvoidedNodes, ANodeThatDoesNotStartPodsOfAJobIsAvoidedLongerEachTime) {
  Nodes nodes;
  EXPECT_EQ(avoid_node(nodes, unstarted("n1"), kNow, kPatience), kNow + 5min);
  // Another pod of the same round.
  EXPECT_EQ(avoid_node(nodes, unstarted("n1"), kNow + 1min, kPatience), kNow + 5min);
  EXPECT_EQ(avoided_at(nodes, kNow + 4min, kPatience), (std::set<std::string>{"n1"}));
  EXPECT_TRUE(avoided_at(nodes, kNow + 5min, kPatience).empty());
  EXPECT_TRUE(is_listed(nodes, "n1"));
  const WallTime again = kNow + 10min;
  EXPECT_EQ(avoid_node(nodes, unstarted("n1"), again, kPatience), again + 10min);
  EXPECT_EQ(avoid_node(nodes, unstarted("n2"), again, kPatience), again + 5min);
  EXPECT_EQ(avoid_node(nodes, unstarted("n1"), again + 15min, kPatience), again + 35min);
  EXPECT_EQ(avoid_node(nodes, unstarted("n1"), again + 40min, kPatience), again + 70min);
  EXPECT_EQ(avoid_node(nodes, unstarted("n1"), again + 81min, kPatience), again + 86min);  // anew
  forget_old_rows(nodes, again + 90min, kPatience);
  ASSERT_EQ(nodes.size(), 1u);  // n2 was quiet for long
  EXPECT_EQ(nodes[0].times, 1);
}

TEST(AvoidedNodes, StandInTheStatus) {
  api::TrainingJobStatus status;
  avoid_node(status.avoided_nodes, refused("n1"), kNow, kPatience);
  const json::Value value = api::encode(status);
  EXPECT_EQ(value["avoidedNodes"][0]["until"].string_or(""), "2026-11-21T08:00:30Z");
  const auto back = api::decode<api::TrainingJobStatus>(value, "status");
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->avoided_nodes, status.avoided_nodes);
}

TEST(AvoidedNodes, TheListAndItsTextsAreBounded) {
  Nodes nodes;
  for (std::size_t i = 0; i <= api::kAvoidedNodesMost; ++i) {
    UselessPod pod = refused("n" + std::to_string(i));
    for (int k = 0; k < 400; ++k) pod.message += "ö";
    avoid_node(nodes, pod, kNow + std::chrono::seconds(i), kPatience);
  }
  EXPECT_EQ(nodes.size(), api::kAvoidedNodesMost);
  EXPECT_FALSE(is_listed(nodes, "n0"));  // its time was over first
  EXPECT_LE(nodes.back().message.size(), api::kAvoidedMessageMost);
  EXPECT_TRUE(nodes.back().message.ends_with("ö..."));
}

TEST(AvoidedNodes, AllRefusedForOneReasonOrNot) {
  Nodes nodes;
  EXPECT_FALSE(common_refusal(nodes, kNow, kPatience));
  avoid_node(nodes, refused("n1"), kNow, kPatience);
  avoid_node(nodes, refused("n2"), kNow + 10s, kPatience);
  auto common = common_refusal(nodes, kNow + 20s, kPatience);
  ASSERT_TRUE(common);
  EXPECT_EQ(common->reason, "DataNotFound");
  EXPECT_EQ(common->text, "n1, n2: cannot open /data/tokens");
  EXPECT_EQ(common->next_try, kNow + 30s);
  EXPECT_EQ(common->fails_at, kNow + 10s + kAllRefusedLimit);
  // The row goes on with the next try; its limit does not begin anew.
  avoid_node(nodes, refused("n1"), kNow + 45s, kPatience);
  EXPECT_EQ(common_refusal(nodes, kNow + 45s, kPatience)->fails_at, kNow + kAllRefusedLimit);
  // Another reason on one of them, a pod that did not start: no common cause.
  avoid_node(nodes, refused("n2", "OutOfMemory"), kNow + 50s, kPatience);
  EXPECT_FALSE(common_refusal(nodes, kNow + 55s, kPatience));
  Nodes idle;
  avoid_node(idle, unstarted("n1"), kNow, kPatience);
  EXPECT_FALSE(common_refusal(idle, kNow, kPatience));
}

// By the clock of another leader, or by ours before it was set.
TEST(AvoidedNodes, AnUntilBeyondTheLongestWaitSaysNothing) {
  Nodes nodes;
  const WallTime ahead = kNow + 1h;
  avoid_node(nodes, refused("n1"), ahead, kPatience);
  EXPECT_TRUE(avoided_at(nodes, kNow, kPatience).empty());
  EXPECT_FALSE(common_refusal(nodes, kNow, kPatience));
  EXPECT_EQ(avoid_node(nodes, refused("n1"), kNow, kPatience), kNow + kRefusalWait);
  ASSERT_EQ(nodes.size(), 1u);
  EXPECT_EQ(nodes[0].times, 1) << "a new row";
  EXPECT_EQ(nodes[0].since, kNow);
  EXPECT_TRUE(is_avoided(nodes[0], kNow, kPatience));
  avoid_node(nodes, refused("n2"), ahead, kPatience);
  forget_old_rows(nodes, kNow, kPatience);
  EXPECT_FALSE(is_listed(nodes, "n2"));
  EXPECT_TRUE(is_listed(nodes, "n1"));
  // The longest wait itself is kept, also where pods may take longer than that.
  nodes = {{.node = "n3", .reason = "DataNotFound", .times = 9, .until = kNow + kAvoidMost}};
  EXPECT_TRUE(is_avoided(nodes[0], kNow, kPatience));
  nodes[0].until = kNow + 2h;
  EXPECT_TRUE(is_avoided(nodes[0], kNow, 2h));
}

TEST(AvoidedNodes, ASinceThatIsYetToComeCountsAsNow) {
  Nodes nodes;
  avoid_node(nodes, refused("n1"), kNow + 20min, kPatience);
  EXPECT_EQ(common_refusal(nodes, kNow, kPatience)->fails_at, kNow + kAllRefusedLimit);
  const WallTime again = kNow + 10min;
  nodes[0].until = again;
  avoid_node(nodes, refused("n1"), again, kPatience);
  EXPECT_EQ(nodes[0].since, again) << "and is put right with the next failure";
  EXPECT_EQ(nodes[0].times, 2);
}

TEST(AvoidedNodes, WhatNoTimeMendsIsNotWaitedFor) {
  for (const char* reason : {"BadTraining", "StatefulForward", "UnsupportedTrainer"}) {
    Nodes nodes;
    avoid_node(nodes, refused("n1", reason), kNow, kPatience);
    EXPECT_EQ(common_refusal(nodes, kNow, kPatience)->fails_at, kNow);
  }
  Nodes without_driver;
  avoid_node(without_driver, refused("n1", "DeviceUnavailable"), kNow, kPatience);
  EXPECT_EQ(common_refusal(without_driver, kNow, kPatience)->fails_at, kNow + kAllRefusedLimit);
}

}  // namespace
}  // namespace rubato::control
