// A small job whose checkpoints are written and read.
#pragma once

#include "tests/unit/worker/model/training_fixture.h"
#include "worker/checkpoint/checkpoint.h"

#include <utility>
#include <vector>

namespace rubato::worker::testing {

class CheckpointFixture : public ::testing::Test {
 protected:
  static SmallJob small_job() { return {tiny_config(), 2, 2, {.learning_rate = 1e-3}}; }
  static CheckpointInfo info(const SmallJob& job) {
    CheckpointInfo info;
    info.seed = 0xFEDCBA9876543210;
    info.data_digest = 5;
    info.global_batch = 4;
    info.micro_batch = 2;
    info.fingerprint = "1-cpu";
    info.model = job.model->config();
    info.optimizer = {.learning_rate = 1e-3};
    return info;
  }
  static std::vector<StepRecord> train(SmallJob& job, int steps,
                                       std::vector<StepRecord> records = {}) {
    for (int i = 0; i < steps; ++i) {
      const std::int64_t step = job.state.step();
      const double loss = job.step({{1, 0}});
      records.push_back(make_step_record(step, loss, 100 + static_cast<std::uint64_t>(step), 1.0));
    }
    return records;
  }
};

}  // namespace rubato::worker::testing
