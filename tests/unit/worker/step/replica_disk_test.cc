#include "tests/unit/worker/step/sim_worker.h"
#include "worker/testing/deferred_device.h"

namespace rubato::worker {
namespace {

class ReplicaDiskTest : public ::testing::Test {
 protected:
  ReplicaDiskTest() { SimStorage::write_tokens(*files_); }
  Result<std::unique_ptr<Replica>> make(const SimJob& job = {}, const std::string& pinned = "") {
    const auto config = parse_training(job.training());
    return make_model_replica(
        config.value(),
        {.files = *files_, .job_uid = job.uid, .pinned = pinned, .open_device = open_test_device});
  }

  testing::SimExecutor sim_{1};
  SimStorage storage_{sim_};
  std::unique_ptr<testing::SimDisk> files_ = storage_.open(sim_.process("p"));
};

TEST_F(ReplicaDiskTest, TheFingerprintNamesTheData) {
  const std::string first = make().value()->fingerprint().value();
  EXPECT_NE(first.find("/data="), std::string::npos);
  EXPECT_TRUE(first.ends_with(",900")) << first;
  EXPECT_EQ(make({}, first).value()->fingerprint().value(), first);
  // A job that an older version began goes on under its own.
  const std::string older = first.substr(0, first.find("/data="));
  EXPECT_EQ(make({}, older).value()->fingerprint().value(), older);
  SimStorage::write_tokens(*files_, 1);
  const std::string other = make().value()->fingerprint().value();
  EXPECT_NE(other, first);
  EXPECT_EQ(other.substr(0, other.find("/data=")), older);
}

// Data that change under a running job end it there; nothing else is trained on.
TEST_F(ReplicaDiskTest, DamagedDataAreNeverTrainedOn) {
  const auto replica = make().value();
  ASSERT_TRUE(replica->init_from_seed().ok());
  replica->clear();
  ASSERT_TRUE(replica->compute({}, 0).ok());
  ASSERT_TRUE(storage_.data.flip_bit("/t.bin", 700, 0).ok());
  const auto part = replica->compute({}, 1);
  ASSERT_FALSE(part.ok());
  EXPECT_EQ(part.error().reason(), "DataDamaged");
  EXPECT_EQ(make().error().reason(), "DataDamaged");
  storage_.data.faults().broken = true;
  EXPECT_EQ(make().error().reason(), "DataUnreadable");
}

TEST_F(ReplicaDiskTest, ARoundWithOtherSamplesIsNotApplied) {
  const auto replica = make().value();
  ASSERT_TRUE(replica->init_from_seed().ok());
  for (const bool is_right : {false, true}) {
    replica->clear();
    std::uint64_t digest = 0;
    std::int64_t loss = 0;
    for (std::uint32_t m = 0; m < replica->micro_batches(); ++m) {
      const MicroPart part = replica->compute({}, m).value();
      digest += part.sample_digest;
      loss += part.loss_q;
      ASSERT_TRUE(replica->accumulate().ok());
    }
    replica->device().copy(replica->stream(), replica->reduced(), replica->accumulators());
    ASSERT_FALSE(replica->judge(0)->overflow);
    const auto applied = replica->apply(loss, digest + (is_right ? 0 : 1));
    EXPECT_EQ(applied.ok(), is_right);
    EXPECT_EQ(replica->step(), is_right ? 1u : 0u);
    if (!is_right) {
      EXPECT_EQ(applied.error().reason(), "LedgerMismatch");
    }
  }
}

TEST_F(ReplicaDiskTest, ACheckpointKeepsTheAttemptsAtTheOpenStep) {
  const auto replica = make().value();
  ASSERT_TRUE(replica->init_from_seed().ok());
  const auto path = replica->snapshot().value()->save({}, 3);
  ASSERT_TRUE(path.ok()) << path.error().what();
  EXPECT_EQ(*path, "/ckpt/step-00000000");
  EXPECT_EQ(make().value()->load_checkpoint(0)->redo_attempts, 3u);
}

}  // namespace
}  // namespace rubato::worker
