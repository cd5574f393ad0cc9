#include "tools/rubatoctl/demo/compare.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace rubato::ctl {
namespace {

class CompareTest : public ::testing::Test {
 protected:
  CompareTest() {
    std::string name = ::testing::TempDir() + "/compare-XXXXXX";
    folder_ = ::mkdtemp(name.data());
    for (const char* run : {"a", "b"}) {
      std::filesystem::create_directories(folder_ + "/" + run + "/step-00000002");
      write(std::string(run) + "/LATEST", "step-00000002\n");
      for (const char* file : {"steps.bin", "model.safetensors", "optimizer.safetensors"})
        write(std::string(run) + "/step-00000002/" + file, std::string(64, 'x'));
    }
  }
  ~CompareTest() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& file, const std::string& bytes) const {
    std::ofstream(folder_ + "/" + file, std::ios::binary) << bytes;
  }
  std::string folder_;
};

TEST_F(CompareTest, Equal) {
  const auto verdicts = compare_checkpoints(folder_ + "/a", folder_ + "/b");
  ASSERT_TRUE(verdicts.ok());
  ASSERT_EQ(verdicts->size(), 3u);
  for (const FileVerdict& verdict : *verdicts) {
    EXPECT_TRUE(verdict.equal) << verdict.file;
    EXPECT_EQ(verdict.first_hash, verdict.second_hash);
    EXPECT_EQ(verdict.difference, "");
  }
}

TEST_F(CompareTest, OneBitIsADifference) {
  std::string bytes(64, 'x');
  bytes[40] = 'y';  // in the second record of 32 bytes
  write("b/step-00000002/steps.bin", bytes);
  write("b/step-00000002/model.safetensors", bytes);
  write("b/step-00000002/optimizer.safetensors", std::string(63, 'x'));
  const auto verdicts = compare_checkpoints(folder_ + "/a", folder_ + "/b");
  ASSERT_TRUE(verdicts.ok());
  for (const FileVerdict& verdict : *verdicts) EXPECT_FALSE(verdict.equal) << verdict.file;
  EXPECT_EQ((*verdicts)[0].difference, "first at step 2");
  EXPECT_EQ((*verdicts)[1].difference, "first at byte 40");
  EXPECT_EQ((*verdicts)[2].difference, "64 bytes and 63 bytes");
  write("b/step-00000002/model.safetensors", "x");
  const auto cut = compare_checkpoints(folder_ + "/a", folder_ + "/b");
  ASSERT_TRUE(cut.ok());
  EXPECT_EQ((*cut)[1].difference, "64 bytes and 1 byte");
}

TEST_F(CompareTest, NoCheckpointIsAnError) {
  std::filesystem::remove(folder_ + "/b/LATEST");
  EXPECT_FALSE(compare_checkpoints(folder_ + "/a", folder_ + "/b").ok());
}

}  // namespace
}  // namespace rubato::ctl
