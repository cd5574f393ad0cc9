#include "operator/control/snapshot_folder.h"

#include <gtest/gtest.h>

namespace rubato::control {
namespace {

sched::Snapshot with_nodes(int count) {
  sched::Snapshot snapshot;
  for (int i = 0; i < count; ++i)
    snapshot.state.nodes.push_back({.id = "n" + std::to_string(i), .gpu_type = "A"});
  return snapshot;
}

class SnapshotFolderTest : public ::testing::Test {
 protected:
  SnapshotFolderTest()
      : path_(files_.make_unique_directory(::testing::TempDir() + "snapshots").value() + "/in") {}
  ~SnapshotFolderTest() override { (void)files_.remove_all(parent_of(path_)); }
  std::vector<std::string> names() { return files_.list(path_).value(); }

  PosixFileSystem files_;
  const std::string path_;
};

TEST_F(SnapshotFolderTest, EachRoundThatDiffersIsAFileThatReadsBack) {
  SnapshotFolder folder(files_, path_);
  for (const int nodes : {1, 1, 2, 2, 1}) folder.add(with_nodes(nodes));
  EXPECT_EQ(names(), (std::vector<std::string>{"round-000000001.json", "round-000000002.json",
                                               "round-000000003.json"}));
  const auto text = read_text(files_, path_ + "/round-000000002.json", 1 << 20);
  ASSERT_TRUE(text.ok());
  const auto snapshot = sched::read_snapshot(*text);
  ASSERT_TRUE(snapshot.ok()) << snapshot.error().what();
  EXPECT_TRUE(*snapshot == with_nodes(2));
}

TEST_F(SnapshotFolderTest, KeepsTheLatestAndGoesOnAfterARestart) {
  {
    SnapshotFolder folder(files_, path_, 2);
    for (int i = 1; i <= 3; ++i) folder.add(with_nodes(i));
  }
  ASSERT_TRUE(replace_file(files_, path_ + "/notes.txt", "mine").ok());
  SnapshotFolder folder(files_, path_, 2);
  folder.add(with_nodes(9));
  EXPECT_EQ(names(), (std::vector<std::string>{"notes.txt", "round-000000003.json",
                                               "round-000000004.json"}));
}

TEST_F(SnapshotFolderTest, ADiskThatRefusesStopsNothing) {
  ASSERT_TRUE(files_.make_directories(parent_of(path_)).ok());
  ASSERT_TRUE(replace_file(files_, path_, "a file where the folder should be").ok());
  SnapshotFolder folder(files_, path_);
  folder.add(with_nodes(1));
  ASSERT_TRUE(files_.remove_all(path_).ok());
  folder.add(with_nodes(1));
  EXPECT_EQ(names(), std::vector<std::string>{"round-000000001.json"});
}

}  // namespace
}  // namespace rubato::control
