#include "tools/rubatoctl/local/cluster.h"
#include "tools/rubatoctl/local/data.h"

#include <gtest/gtest.h>

namespace rubato::ctl {
namespace {

TEST(LocalRecord, SurvivesItsFile) {
  LocalRecord record;
  record.network = 77;
  record.operator_ports = {4001, 4002};
  node_of(record, "", 2);
  node_of(record, "big", 8);
  const auto again = decode_local_record(encode(record));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(encode(*again), encode(record));
  EXPECT_EQ(again->nodes[1].name, "big");
  EXPECT_EQ(again->nodes[1].number, 2);
}

TEST(LocalRecord, NumbersAreNeverUsedTwice) {
  LocalRecord record;
  EXPECT_EQ(node_of(record, "", 1).name, "n1");
  EXPECT_EQ(node_of(record, "n2", 1).number, 2);
  EXPECT_EQ(node_of(record, "", 1).name, "n3");
  EXPECT_EQ(node_of(record, "n1", 4).number, 1);  // it is there: as it was
  EXPECT_EQ(node_of(record, "n1", 4).slots, 1);
  EXPECT_EQ(node_of(record, "n5", 1).number, 4);
  EXPECT_EQ(node_of(record, "", 1).name, "n5-2");  // its own number's name is taken
}

TEST(LocalRecord, GpusAreDealtToNewNodesOnce) {
  LocalRecord record;
  ASSERT_TRUE(add_nodes(record, 1, 4, {}).ok());
  EXPECT_EQ(record.nodes[0].slots, 4);
  EXPECT_TRUE(record.nodes[0].gpus.empty());
  const std::vector<int> all = {0, 1, 2, 3, 5};
  ASSERT_TRUE(add_nodes(record, 3, 1, all).ok());
  EXPECT_EQ(record.nodes[1].gpus, (std::vector<int>{0, 1}));
  EXPECT_EQ(record.nodes[2].gpus, (std::vector<int>{2, 3, 5}));
  EXPECT_EQ(record.nodes[2].slots, 3);
  record.network = 77;
  const LocalRecord again = decode_local_record(encode(record)).value();
  EXPECT_EQ(again.nodes[2].gpus, record.nodes[2].gpus);
  EXPECT_TRUE(add_nodes(record, 3, 1, all).ok());  // as it is: nothing to do
  EXPECT_EQ(record.nodes.size(), 3u);

  const auto fewer = add_nodes(record, 5, 1, {0, 7});
  EXPECT_NE(
      fewer.error().what().find("1 unused GPU of this machine cannot be dealt to 2 new nodes"),
      std::string::npos)
      << fewer.error().what();
  const auto no_new = add_nodes(record, 3, 1, {6, 7});
  EXPECT_NE(no_new.error().what().find("`rubatoctl node add --gpus 6,7`"), std::string::npos);
  EXPECT_EQ(add_gpu_node(record, "n1", {6}).error().code(), Code::kInvalid);
  EXPECT_EQ(add_gpu_node(record, "n9", {0, 5}).error().code(), Code::kInvalid);
  EXPECT_EQ(add_gpu_node(record, "n9", {5, 6}).value().gpus, std::vector<int>{6});
}

TEST(LocalRecord, ANodeThatIsSwitchedOnAgainKeepsItsSlots) {
  LocalRecord record;
  EXPECT_EQ(add_slot_node(record, "", std::nullopt).value().slots, 1);
  EXPECT_EQ(add_slot_node(record, "big", 8).value().slots, 8);
  EXPECT_EQ(add_slot_node(record, "big", std::nullopt).value().slots, 8);
  EXPECT_EQ(add_slot_node(record, "big", 8).value().number, 2);
  const auto other = add_slot_node(record, "big", 1);
  ASSERT_FALSE(other.ok());
  EXPECT_TRUE(other.error().what().starts_with("node big is there already, with 8 GPUs, and keeps"))
      << other.error().what();
  EXPECT_EQ(record.nodes.size(), 2u);
}

TEST(LocalRecord, NamesAreThoseOfNodesAndFiles) {
  for (const char* right : {"", "n1", "big-2"}) EXPECT_TRUE(check_node_name(right).ok()) << right;
  for (const char* wrong : {"Bad_Name", "../../x", "a/b", "a.b", "-a"})
    EXPECT_EQ(check_node_name(wrong).error().code(), Code::kInvalid) << wrong;
}

TEST(DataPlace, StaysInItsClaim) {
  EXPECT_TRUE(check_place({}).ok());
  EXPECT_TRUE(check_place({.ns = "team-a", .claim = "kjv.data", .file = "a b..tokens"}).ok());
  for (const char* wrong : {"", "..", "../x", "/x", "a/b"}) {
    EXPECT_EQ(check_place({.ns = wrong}).error().code(), Code::kInvalid) << wrong;
    EXPECT_EQ(check_place({.claim = wrong}).error().code(), Code::kInvalid) << wrong;
    EXPECT_EQ(check_place({.file = wrong}).error().code(), Code::kInvalid) << wrong;
  }
}

TEST(LocalRecord, NonsenseIsRefused) {
  EXPECT_FALSE(decode_local_record(json::Value()).ok());
  EXPECT_FALSE(
      decode_local_record(json::parse(R"({"network":77,"nodes":[{"name":"a"}]})").value()).ok());
}

}  // namespace
}  // namespace rubato::ctl
