#include "tools/rubatoctl/local/cluster.h"

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

TEST(LocalRecord, NonsenseIsRefused) {
  EXPECT_FALSE(decode_local_record(json::Value()).ok());
  EXPECT_FALSE(
      decode_local_record(json::parse(R"({"network":77,"nodes":[{"name":"a"}]})").value()).ok());
}

}  // namespace
}  // namespace rubato::ctl
