#include "worker/checkpoint/step_export.h"

#include "common/testing/sim_disk.h"

#include <gtest/gtest.h>

namespace rubato::worker {
namespace {

using rubato::testing::SimDisk;
using rubato::testing::SimExecutor;
using rubato::testing::SimVolume;

class StepExportTest : public ::testing::Test {
 protected:
  StepExportTest() {
    disk_.mount("/", volume_);
    for (int i = 0; i < 8; ++i) records_.push_back(make_step_record(i, 2.5 - i, 7, 1.0));
  }
  std::span<const StepRecord> records(std::size_t first, std::size_t count) const {
    return std::span(records_).subspan(first, count);
  }

  SimExecutor sim_{1};
  SimVolume volume_{sim_, 2};
  SimDisk disk_{sim_.process("p"), "n"};
  std::vector<StepRecord> records_;
  StepExport file_{disk_, "/c/steps.bin"};
};

TEST_F(StepExportTest, RecordsCanBeWrittenAgain) {
  ASSERT_TRUE(file_.write(records(0, 5)).ok());
  ASSERT_TRUE(file_.write(records(2, 2)).ok());
  EXPECT_EQ(read_step_records(disk_, "/c/steps.bin").value(),
            std::vector(records_.begin(), records_.begin() + 5));
  EXPECT_EQ(records_[1].loss(), 1.5);
}

TEST_F(StepExportTest, AHoleIsNoRecordAndIsFilled) {
  ASSERT_TRUE(file_.write(records(5, 3)).ok());
  EXPECT_FALSE(read_step_records(disk_, "/c/steps.bin").ok());
  ASSERT_TRUE(file_.write(records(0, 8)).ok());
  EXPECT_EQ(read_step_records(disk_, "/c/steps.bin").value(), records_);
}

// Another lineage wrote it: said with the step, kept, and the run's own file goes on.
TEST_F(StepExportTest, AnotherLineageIsKeptAside) {
  std::vector<StepRecord> other = records_;
  other[3].loss_bits ^= 1;
  ASSERT_TRUE(file_.write(other).ok());
  const Status done = file_.write(records(0, 5));
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().code(), Code::kConflict);
  EXPECT_NE(done.error().what().find("step 4"), std::string::npos) << done.error().what();
  EXPECT_EQ(read_step_records(disk_, "/c/steps.bin").value(),
            std::vector(records_.begin(), records_.begin() + 5));
  EXPECT_EQ(read_step_records(disk_, "/c/steps.bin.diverged-1").value(), other);

  // One record, as a step writes it: what is before it stays.
  ASSERT_TRUE(file_.write(records(5, 3)).ok());
  EXPECT_EQ(file_.write(std::span(other).subspan(3, 1)).error().code(), Code::kConflict);
  EXPECT_EQ(read_step_records(disk_, "/c/steps.bin").value(),
            std::vector(other.begin(), other.begin() + 4));
  EXPECT_EQ(read_step_records(disk_, "/c/steps.bin.diverged-2").value(), records_);
}

TEST_F(StepExportTest, KeptOnesAreBounded) {
  for (int i = 0; i < 6; ++i) {
    std::vector<StepRecord> other = records_;
    other[0].sample_digest = static_cast<std::uint64_t>(i);
    (void)file_.write(other);
  }
  EXPECT_EQ(disk_.list("/c").value(),
            (std::vector<std::string>{"steps.bin", "steps.bin.diverged-3", "steps.bin.diverged-4",
                                      "steps.bin.diverged-5"}));
}

}  // namespace
}  // namespace rubato::worker
