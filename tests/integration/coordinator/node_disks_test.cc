// The views of NodeDisks, through the PosixFileSystem that workers use.
#include "tests/integration/coordinator/node_disks.h"

#include "common/clock.h"
#include "common/files.h"

#include <cstdlib>
#include <future>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

namespace rubato {
namespace {

namespace fs = std::filesystem;

class NodeDisksTest : public testing::Test {
 protected:
  void SetUp() override {
    static const Status kEntered = NodeDisks::enter_mount_namespace();
    const Status fuse = NodeDisks::check_fuse();
    for (const Status& can : {kEntered, fuse})
      if (!can.ok()) GTEST_SKIP() << can.error().to_string();
    std::string pattern = (fs::temp_directory_path() / "rubato-disks-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    fs::create_directories(folder_ / "shared");
    auto made = NodeDisks::open(folder_ / "shared", {folder_ / "a", folder_ / "b"});
    ASSERT_TRUE(made.ok()) << made.error().to_string();
    disks_ = std::move(made).value();
  }
  void TearDown() override {
    disks_.reset();
    if (!folder_.empty()) fs::remove_all(folder_);
  }
  std::string at(const char* name) const { return (folder_ / name).string(); }
  Status write(const std::string& path, std::string_view text) {
    return replace_file(files_, path, text);
  }

  PosixFileSystem files_;
  fs::path folder_;
  std::unique_ptr<NodeDisks> disks_;
};

TEST_F(NodeDisksTest, WhatOneNodeWritesTheOthersSee) {
  ASSERT_TRUE(files_.make_directories(at("a/x/y")).ok());
  const std::string large(300'000, 'q');  // several requests
  ASSERT_TRUE(write(at("a/x/y/file"), large).ok());
  EXPECT_EQ(read_text(files_, at("b/x/y/file"), 1u << 20).value(), large);
  EXPECT_EQ(read_text(files_, at("shared/x/y/file"), 1u << 20).value(), large);
  ASSERT_TRUE(write(at("b/x/y/file"), "short").ok());
  const auto mapped = files_.map(at("a/x/y/file"));
  ASSERT_TRUE(mapped.ok());
  EXPECT_EQ((*mapped)->bytes().size(), 5u);
  EXPECT_EQ(std::to_integer<char>((*mapped)->bytes()[0]), 's');
}

TEST_F(NodeDisksTest, FoldersAreRenamedListedAndRemoved) {
  const auto draft = files_.make_unique_directory(at("a/.draft-"));
  ASSERT_TRUE(draft.ok()) << draft.error().to_string();
  for (int i = 0; i < 200; ++i)  // more than one answer holds
    ASSERT_TRUE(write(*draft + "/file-with-a-long-name-" + std::to_string(i), "x").ok());
  ASSERT_TRUE(files_.sync_directory(*draft).ok());
  ASSERT_TRUE(files_.rename(*draft, at("a/step-1")).ok());
  EXPECT_EQ(files_.list(at("b/step-1")).value().size(), 200u);
  ASSERT_TRUE(files_.remove_all(at("b/step-1")).ok());
  EXPECT_EQ(files_.stat(at("a/step-1")).error().code(), Code::kNotFound);
}

TEST_F(NodeDisksTest, AFullDiskReadsButDoesNotWriteUntilThereIsRoom) {
  ASSERT_TRUE(write(at("a/file"), "before").ok());
  disks_->set(0, DiskState::kFull);
  EXPECT_EQ(write(at("a/file"), "after").error().code(), Code::kExhausted);
  EXPECT_EQ(read_text(files_, at("a/file"), 100).value(), "before");
  EXPECT_TRUE(write(at("b/file"), "of another node").ok());
  disks_->set(0, DiskState::kWhole);
  EXPECT_TRUE(write(at("a/file"), "after").ok());
}

TEST_F(NodeDisksTest, AFailingDiskDoesNothingButFollowLinksOut) {
  fs::create_directories(folder_ / "outside");
  fs::create_symlink(folder_ / "outside", folder_ / "shared/link");
  ASSERT_TRUE(write(at("a/file"), "before").ok());
  disks_->set_all(DiskState::kFailing);
  for (const char* node : {"a", "b"}) {
    const std::string file = at(node) + "/file";
    EXPECT_EQ(read_text(files_, file, 100).error().code(), Code::kUnavailable);
    EXPECT_EQ(write(file, "after").error().code(), Code::kUnavailable);
    EXPECT_EQ(files_.list(at(node)).error().code(), Code::kUnavailable);
    EXPECT_TRUE(write(at(node) + "/link/file", "outside").ok());
  }
  disks_->set_all(DiskState::kWhole);
  EXPECT_EQ(read_text(files_, at("b/file"), 100).value(), "before");
}

TEST_F(NodeDisksTest, ASlowDiskTakesItsTimeAndIsQuickOnceWhole) {
  disks_->set(0, DiskState::kSlow);
  const SystemClock clock;
  const MonoTime began = clock.now();
  auto written = std::async(std::launch::async, [&] { return write(at("a/file"), "late"); });
  EXPECT_TRUE(written.get().ok());
  EXPECT_GE(clock.now() - began, 3 * kSlowDiskCall);  // made, written, synced, renamed
}

TEST_F(NodeDisksTest, WhoIsInsideWhenItEndsIsToldSo) {
  const auto file = files_.open(at("a/file"), OpenMode::kCreate);
  ASSERT_TRUE(file.ok());
  disks_.reset();
  EXPECT_FALSE((*file)->sync().ok());
}

}  // namespace
}  // namespace rubato
