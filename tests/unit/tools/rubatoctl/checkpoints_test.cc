#include "tools/rubatoctl/checkpoints.h"

#include "common/json.h"
#include "common/testing/sim_disk.h"
#include "worker/backend/digest.h"
#include "worker/checkpoint/checkpoint_folder.h"
#include "worker/checkpoint/safetensors.h"

#include <array>

#include <gtest/gtest.h>

namespace rubato::ctl {
namespace {

using worker::CheckpointFolder;

// A disk on which a path, with all below it, cannot be read, or goes as soon as it is looked at.
class FaultyDisk : public FileSystem {
 public:
  explicit FaultyDisk(FileSystem& disk) : disk_(disk) {}
  Result<std::unique_ptr<File>> open(const std::string& path, OpenMode mode) override {
    if (path.starts_with(vanishing) && !vanishing.empty()) {
      EXPECT_TRUE(disk_.remove_all(vanishing).ok());
    }
    if (path.starts_with(broken) && !broken.empty())
      return Error(Code::kUnavailable, path + ": Input/output error");
    return disk_.open(path, mode);
  }
  Result<std::shared_ptr<const FileView>> map(const std::string& path) override {
    return disk_.map(path);
  }
  Result<FileStat> stat(const std::string& path) override { return disk_.stat(path); }
  Result<std::vector<std::string>> list(const std::string& path) override {
    return disk_.list(path);
  }
  Status make_directories(const std::string& path) override { return disk_.make_directories(path); }
  Result<std::string> make_unique_directory(const std::string& prefix) override {
    return disk_.make_unique_directory(prefix);
  }
  Status sync_directory(const std::string& path) override { return disk_.sync_directory(path); }
  Status rename(const std::string& from, const std::string& to) override {
    return disk_.rename(from, to);
  }
  Status remove_all(const std::string& path) override { return disk_.remove_all(path); }
  Result<std::unique_ptr<FileLock>> lock(const std::string& path) override {
    return disk_.lock(path);
  }
  std::string vanishing;  // empty: none
  std::string broken;

 private:
  FileSystem& disk_;
};

class CheckpointsTest : public ::testing::Test {
 protected:
  CheckpointsTest() { disk_.mount("/", volume_); }
  void write(const std::string& path, const std::string& text) {
    const auto file = disk_.open(path, OpenMode::kCreate).value();
    ASSERT_TRUE(file->write_at(0, std::as_bytes(std::span(text))).ok());
  }
  // A checkpoint of one tensor, as a worker seals it.
  void add(std::int64_t step, const std::string& job) {
    const CheckpointFolder folder(disk_, "/c");
    const std::string draft = folder.make_draft(step).value();
    const std::string digest = worker::to_hex(
        worker::write_safetensors(disk_, draft + "/model.safetensors",
                                  {{"w", "F32", {2}, weights_.data(), sizeof weights_}}, {})
            .value());
    const std::string run = json::dump(
        json::Value::object({{"format", 1},
                             {"step", step},
                             {"jobUid", job},
                             {"files", json::Value::object({{"model.safetensors", digest}})},
                             {"digest", worker::kBlankDigest}}),
        2);
    write(draft + "/run.json", worker::sealed(run + "\n"));
    ASSERT_TRUE(folder.publish(draft, step).ok());
    ASSERT_TRUE(disk_.remove_all(parent_of(draft)).ok());
  }
  std::string list() { return list_checkpoints(disk_, "/c", "table").value().text; }

  testing::SimExecutor sim_{1};
  testing::SimVolume volume_{sim_, 2};
  testing::SimDisk disk_{sim_.process("p"), "n"};
  const std::array<float, 2> weights_ = {1, 2};
};

TEST_F(CheckpointsTest, ListShowsWhatStandsAndWhoseItIs) {
  EXPECT_EQ(list_checkpoints(disk_, "/c", "table").error().code(), Code::kNotFound);
  add(2, "uid-a");
  add(10, "");
  ASSERT_TRUE(disk_.make_directories("/c/.draft-step-00000011-x").ok());
  ASSERT_TRUE(disk_.make_directories("/c/.damaged-step-00000001-1").ok());
  EXPECT_EQ(list(),
            "NAME                       STEP   SIZE    JOB     STATE\n"
            "step-00000002              2      218 B   uid-a   complete\n"
            "step-00000010              10     214 B   none    complete\n"
            ".damaged-step-00000001-1   -      -       -       set aside: it was damaged\n"
            ".draft-step-00000011-x     -      -       -       draft: being written, or left by a "
            "crash\n");
  const auto json = json::parse(list_checkpoints(disk_, "/c", "json").value().text).value();
  EXPECT_EQ(json["checkpoints"].size(), 4u);
  EXPECT_EQ(json["checkpoints"][std::size_t{0}]["step"].int_or(0), 2);
  EXPECT_EQ(json["checkpoints"][std::size_t{0}]["jobUid"].string_or(""), "uid-a");
}

TEST_F(CheckpointsTest, VerifyReadsEveryByte) {
  EXPECT_EQ(verify_checkpoints(disk_, "/c", -1).error().code(), Code::kNotFound);
  add(2, "uid-a");
  add(4, "uid-a");
  EXPECT_EQ(verify_checkpoints(disk_, "/c", -1)->damaged, 0);
  ASSERT_TRUE(volume_.flip_bit("/c/step-00000002/model.safetensors", 3, 1).ok());
  const auto report = verify_checkpoints(disk_, "/c", -1).value();
  EXPECT_EQ(report.damaged, 1);
  EXPECT_NE(report.text.find("step-00000004   4      218 B   whole"), std::string::npos)
      << report.text;
  EXPECT_NE(report.text.find("damaged: /c/step-00000002 is damaged: model.safetensors"),
            std::string::npos)
      << report.text;
  EXPECT_EQ(verify_checkpoints(disk_, "/c", 4)->damaged, 0);
  EXPECT_EQ(verify_checkpoints(disk_, "/c", 5).error().code(), Code::kNotFound);
  volume_.faults().broken = true;
  EXPECT_EQ(verify_checkpoints(disk_, "/c", -1).error().code(), Code::kUnavailable);
}

TEST_F(CheckpointsTest, OneThatGoesMeanwhileIsLeftOut) {
  for (const std::int64_t step : {2, 4, 6}) add(step, "uid-a");
  FaultyDisk disk(disk_);
  disk.vanishing = "/c/step-00000002";
  const auto report = verify_checkpoints(disk, "/c", -1);
  ASSERT_TRUE(report.ok()) << report.error().what();
  EXPECT_TRUE(verdict(*report).ok());
  EXPECT_EQ(report->text,
            "NAME            STEP   SIZE    STATE\n"
            "step-00000004   4      218 B   whole\n"
            "step-00000006   6      218 B   whole\n");
  disk.vanishing = "/c/step-00000004";
  EXPECT_EQ(list_checkpoints(disk, "/c", "table")->text,
            "NAME            STEP   SIZE    JOB     STATE\n"
            "step-00000006   6      218 B   uid-a   complete\n");
  disk.vanishing = "/c/step-00000006";
  EXPECT_EQ(verify_checkpoints(disk, "/c", 6).error().code(), Code::kNotFound);
  add(8, "uid-a");
  disk.vanishing = "/c/step-00000008";
  EXPECT_EQ(release_checkpoints(disk, "/c").value(), "nothing in /c belongs to a job\n");
}

TEST_F(CheckpointsTest, OneThatCannotBeReadIsARow) {
  for (const std::int64_t step : {2, 4, 6}) add(step, "uid-a");
  ASSERT_TRUE(volume_.flip_bit("/c/step-00000002/model.safetensors", 3, 1).ok());
  FaultyDisk disk(disk_);
  disk.broken = "/c/step-00000004";
  const auto report = verify_checkpoints(disk, "/c", -1);
  ASSERT_TRUE(report.ok()) << report.error().what();
  EXPECT_EQ(report->damaged, 1);
  EXPECT_EQ(report->unread, 1);
  for (const char* row : {"damaged: /c/step-00000002", "cannot be read: /c/step-00000004",
                          "step-00000006   6      218 B   whole"})
    EXPECT_NE(report->text.find(row), std::string::npos) << report->text;
  EXPECT_EQ(verdict(*report).error().what(),
            "1 damaged; a job sets them aside and takes an older one; 1 cannot be read; look at "
            "the disk, and at the rights of this user");
  const auto listed = list_checkpoints(disk, "/c", "table");
  ASSERT_TRUE(listed.ok());
  EXPECT_NE(listed->text.find("cannot be read: /c/step-00000004"), std::string::npos);
  EXPECT_NE(listed->text.find("step-00000006   6      218 B   uid-a   complete"),
            std::string::npos);
  EXPECT_FALSE(verdict(*listed).ok());
}

TEST_F(CheckpointsTest, AFolderThatIsNotThereIsAnError) {
  const Error listed = list_checkpoints(disk_, "/none", "table").error();
  EXPECT_EQ(listed.code(), Code::kNotFound);
  EXPECT_EQ(prune_checkpoints(disk_, "/none", {}).error().what(), listed.what());
  EXPECT_EQ(release_checkpoints(disk_, "/none").error().what(), listed.what());
}

TEST_F(CheckpointsTest, PruneSaysWhatItDoes) {
  for (const std::int64_t step : {2, 4, 6}) add(step, "uid-a");
  ASSERT_TRUE(disk_.make_directories("/c/.draft-step-00000005-x").ok());
  ASSERT_TRUE(disk_.make_directories("/c/.draft-step-00000007-x").ok());  // may be being written
  ASSERT_TRUE(disk_.make_directories("/c/.damaged-step-00000001-1").ok());
  const std::string before = list();
  EXPECT_EQ(prune_checkpoints(disk_, "/c", {.keep = 1, .damaged = true, .dry_run = true}).value(),
            "would remove /c/step-00000002\nwould remove /c/step-00000004\n"
            "would remove /c/.draft-step-00000005-x\n"
            "would remove /c/.damaged-step-00000001-1\n");
  EXPECT_EQ(list(), before);
  EXPECT_EQ(prune_checkpoints(disk_, "/c", {.keep = 1}).value(),
            "removes /c/step-00000002\nremoves /c/step-00000004\n"
            "removes /c/.draft-step-00000005-x\n");
  EXPECT_EQ(disk_.list("/c").value(),
            (std::vector<std::string>{".damaged-step-00000001-1", ".draft-step-00000007-x",
                                      "LATEST", "step-00000006"}));
  EXPECT_TRUE(prune_checkpoints(disk_, "/c", {.keep = 0, .damaged = true}).ok());
  EXPECT_EQ(disk_.list("/c").value().size(), 0u) << "LATEST goes with the last";
  EXPECT_EQ(prune_checkpoints(disk_, "/c", {}).value(), "nothing to remove in /c\n");
}

TEST_F(CheckpointsTest, ListNoticesWhatIsMissingOrCutShort) {
  add(2, "uid-a");
  add(4, "uid-a");
  const std::string file = "/c/step-00000002/model.safetensors";
  std::string bytes = read_text(disk_, file, 1 << 20).value();
  bytes.pop_back();
  write(file, bytes);
  ASSERT_TRUE(disk_.remove_all("/c/step-00000004/model.safetensors").ok());
  EXPECT_NE(list().find("damaged: /c/step-00000002 is damaged: " + file), std::string::npos)
      << list();
  EXPECT_NE(list().find("damaged: /c/step-00000004 is damaged: "), std::string::npos) << list();
}

TEST_F(CheckpointsTest, PruneCountsWholeOnesAlone) {
  for (const std::int64_t step : {2, 4, 6, 8}) add(step, "uid-a");
  for (const char* step : {"4", "8"})
    ASSERT_TRUE(
        volume_.flip_bit("/c/step-0000000" + std::string(step) + "/model.safetensors", 3, 1).ok());
  const std::string kept = prune_checkpoints(disk_, "/c", {.keep = 2, .dry_run = true}).value();
  EXPECT_TRUE(kept.starts_with("/c/step-00000008 is damaged: ")) << kept;
  EXPECT_EQ(kept.find("would remove"), std::string::npos) << kept;
  EXPECT_EQ(prune_checkpoints(disk_, "/c", {.keep = 1, .damaged = true}).value(),
            "removes /c/step-00000002\nremoves /c/step-00000004\nremoves /c/step-00000008\n");
  EXPECT_EQ(CheckpointFolder(disk_, "/c").steps().value(), std::vector<std::int64_t>{6});
  ASSERT_TRUE(volume_.flip_bit("/c/step-00000006/model.safetensors", 3, 1).ok());
  EXPECT_TRUE(prune_checkpoints(disk_, "/c", {.keep = 1})
                  .value()
                  .starts_with("/c/step-00000006 is damaged: "));
  volume_.faults().broken = true;
  EXPECT_EQ(prune_checkpoints(disk_, "/c", {.keep = 1, .damaged = true}).error().code(),
            Code::kUnavailable);
}

TEST_F(CheckpointsTest, ReleaseTakesThemFromTheirJob) {
  add(2, "uid-a");
  add(4, "");
  EXPECT_EQ(release_checkpoints(disk_, "/c").value(),
            "/c/step-00000002 belonged to job uid-a; it is free now\n");
  EXPECT_EQ(CheckpointFolder(disk_, "/c").verify(2)->job_uid, "");
  EXPECT_EQ(release_checkpoints(disk_, "/c").value(), "nothing in /c belongs to a job\n");
}

}  // namespace
}  // namespace rubato::ctl
