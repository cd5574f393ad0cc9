#include "worker/step/step_exporter.h"

#include "common/testing/sim_disk.h"

#include <gtest/gtest.h>

namespace rubato::worker {
namespace {

class StepExporterTest : public ::testing::Test {
 protected:
  StepExporterTest() { disk_.mount("/", volume_); }

  testing::SimExecutor sim_{1};
  testing::SimVolume volume_{sim_, 2};
  testing::SimProcess& process_ = sim_.process("p");
  testing::SimDisk disk_{process_, "n"};
  StepExporter exporter_{process_, StepExport(disk_, "/c/steps.bin")};
};

TEST_F(StepExporterTest, WhatCannotBeWrittenIsTriedAgain) {
  volume_.faults().broken = true;
  const std::vector<StepRecord> records{make_step_record(0, 2.5, 7, 1.0),
                                        make_step_record(1, 1.5, 7, 1.0)};
  exporter_.add(records[0]);
  EXPECT_FALSE(exporter_.wait_idle(process_.now() + 10s));
  exporter_.add(records[1]);
  volume_.faults().broken = false;
  EXPECT_TRUE(exporter_.wait_idle(process_.now() + 10s));
  EXPECT_EQ(read_step_records(disk_, "/c/steps.bin").value(), records);
}

// A start from the seed while a record of the run before is being written.
TEST_F(StepExporterTest, ARestartWithoutAHistoryEndsWhatIsTriedAgain) {
  volume_.faults() = {.delay = 1s, .broken = true};
  exporter_.add(make_step_record(5, 2.5, 7, 1.0));
  sim_.run_for(500ms);  // the first operation is not over
  exporter_.restart({});
  sim_.run_for(1min);
  volume_.faults() = {};
  EXPECT_TRUE(exporter_.wait_idle(process_.now() + 10s));
  EXPECT_FALSE(disk_.stat("/c/steps.bin").ok());
}

}  // namespace
}  // namespace rubato::worker
