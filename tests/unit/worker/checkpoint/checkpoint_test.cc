#include "worker/checkpoint/checkpoint.h"

#include "tests/unit/worker/model/training_fixture.h"
#include "worker/checkpoint/files.h"

#include <filesystem>
#include <fstream>

#include <unistd.h>

namespace rubato::worker::testing {
namespace {

namespace fs = std::filesystem;

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() {
    char path[] = "/tmp/rubato-ckpt-XXXXXX";
    folder = mkdtemp(path);
  }
  ~CheckpointTest() override { fs::remove_all(folder); }

  static SmallJob job() { return {tiny_config(), 2, 2, {.learning_rate = 1e-3}}; }
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
  Status save(SmallJob& job, const std::vector<StepRecord>& records, int keep = 2) {
    return CheckpointStore(folder, keep)
        .save(*job.device, *job.stream, job.model->table(), job.state, info(job), records);
  }
  Result<Checkpoint> load(SmallJob& job) {
    return load_checkpoint(folder, *job.device, *job.stream, job.model->table(), job.state);
  }

  std::string folder;
};

TEST_F(CheckpointTest, AResumedRunGoesOnWithTheSameBits) {
  SmallJob whole = job();
  const auto all = train(whole, 6);

  SmallJob first = job();
  const auto half = train(first, 3);
  ASSERT_TRUE(save(first, half).ok());

  SmallJob second = job();
  const auto checkpoint = load(second);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
  EXPECT_EQ(checkpoint->info.step, 3);
  EXPECT_EQ(checkpoint->info.seed, 0xFEDCBA9876543210);
  EXPECT_EQ(checkpoint->info.model, second.model->config());
  EXPECT_EQ(checkpoint->info.optimizer, OptimizerConfig{.learning_rate = 1e-3});
  EXPECT_EQ(checkpoint->records, half);
  EXPECT_EQ(second.hash(), first.hash());
  EXPECT_EQ(train(second, 3, checkpoint->records), all);
  EXPECT_EQ(second.hash(), whole.hash());
}

TEST_F(CheckpointTest, KeepsTheNewest) {
  SmallJob small = job();
  std::vector<StepRecord> records;
  for (int i = 0; i < 4; ++i) {
    records = train(small, 1, records);
    ASSERT_TRUE(save(small, records).ok());
  }
  ASSERT_TRUE(save(small, records).ok()) << "the same step again";
  const CheckpointStore store(folder, 2);
  EXPECT_EQ(store.steps(), (std::vector<std::int64_t>{3, 4}));
  EXPECT_EQ(store.latest().value(), folder + "/step-00000004");
  for (const auto& entry : fs::directory_iterator(folder))
    EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << entry.path();
}

TEST_F(CheckpointTest, AnInterruptedSaveLeavesTheOldOne) {
  SmallJob small = job();
  auto records = train(small, 1);
  ASSERT_TRUE(save(small, records).ok());
  const std::string left = folder + "/.draft-step-00000002-x7Gh2k";  // what a crash leaves
  fs::create_directories(left + "/checkpoint");
  std::ofstream(left + "/checkpoint/model.safetensors") << "half";
  EXPECT_EQ(CheckpointStore(folder, 2).steps(), (std::vector<std::int64_t>{1}));
  EXPECT_EQ(read_checkpoint_info(folder)->step, 1);
  records = train(small, 1, records);
  ASSERT_TRUE(save(small, records).ok());
  EXPECT_EQ(read_checkpoint_info(folder)->step, 2);
  EXPECT_FALSE(fs::exists(left));
}

// It froze while it wrote; others went on, and are writing when it comes back.
TEST_F(CheckpointTest, ALateWriterDoesNoHarm) {
  SmallJob frozen = job();
  const auto old_records = train(frozen, 1);
  SmallJob small = job();
  std::vector<StepRecord> records = train(small, 1);
  for (int i = 0; i < 2; ++i) {
    records = train(small, 1, records);
    ASSERT_TRUE(save(small, records).ok());
  }
  const std::string draft = folder + "/.draft-step-00000004-x7Gh2k";
  fs::create_directories(draft + "/checkpoint");
  ASSERT_TRUE(save(frozen, old_records).ok());
  const CheckpointStore store(folder, 2);
  EXPECT_EQ(store.steps(), (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(store.latest().value(), folder + "/step-00000003");
  EXPECT_EQ(read_text(folder + "/LATEST", 64).value(), "step-00000003\n");
  EXPECT_TRUE(fs::exists(draft + "/checkpoint"));
}

TEST_F(CheckpointTest, DamageIsNoticed) {
  SmallJob small = job();
  ASSERT_TRUE(save(small, train(small, 1)).ok());
  const std::string file = folder + "/step-00000001/optimizer.safetensors";
  std::fstream damage(file, std::ios::in | std::ios::out | std::ios::binary);
  damage.seekp(-2000, std::ios::end);
  damage.put('\x55');
  damage.close();
  SmallJob other = job();
  const auto result = load(other);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code(), Code::kInvalid);
  EXPECT_NE(result.error().what().find("damaged"), std::string::npos);
  EXPECT_EQ(read_checkpoint_info("/nowhere").error().code(), Code::kNotFound);
}

TEST_F(CheckpointTest, AnotherModelIsRefused) {
  SmallJob small = job();
  ASSERT_TRUE(save(small, train(small, 1)).ok());
  ModelConfig wider = tiny_config();
  wider.hidden = 64;
  SmallJob other(wider, 2, 2, {});
  EXPECT_EQ(load(other).error().code(), Code::kInvalid);
}

TEST_F(CheckpointTest, StepRecordsCanBeExportedAgain) {
  const std::string file = folder + "/steps.bin";
  std::vector<StepRecord> records;
  for (int i = 0; i < 5; ++i) records.push_back(make_step_record(i, 2.5 - i, 7, 1.0));
  ASSERT_TRUE(export_step_records(file, records).ok());
  ASSERT_TRUE(export_step_records(file, std::span(records).subspan(2, 2)).ok());
  EXPECT_EQ(read_step_records(file).value(), records);
  EXPECT_EQ(records[1].loss(), 1.5);
  ASSERT_TRUE(export_step_records(folder + "/hole", std::span(records).subspan(2)).ok());
  EXPECT_FALSE(read_step_records(folder + "/hole").ok());
}

}  // namespace
}  // namespace rubato::worker::testing
