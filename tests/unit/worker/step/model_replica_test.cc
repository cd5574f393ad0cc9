// The real replica on one device, a round at a time: which numerics it computes under.
#include "worker/step/model_replica.h"

#include "common/files.h"
#include "tests/unit/worker/support/troubled_files.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/weight_files.h"
#include "worker/data/token_file.h"
#include "worker/model/numerics.h"
#include "worker/step/noise_scale.h"
#include "worker/step/stored_replica.h"
#include "worker/testing/deferred_device.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <span>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

namespace rubato::worker {
namespace {

namespace fs = std::filesystem;

class ModelReplicaTest : public ::testing::Test {
 protected:
  ModelReplicaTest() {
    char path[] = "/tmp/rubato-replica-XXXXXX";
    folder_ = mkdtemp(path);
    config_.model = {.layers = 1, .heads = 2, .hidden = 32, .vocabulary = 61, .sequence_length = 8};
    config_.data_path = folder_ + "/tokens.bin";
    config_.sampler = {.seed = 3,
                       .global_batch = 4,
                       .micro_batch = 1,
                       .sequence_length = 8,
                       .validation_fraction = 0};
    config_.seed = 3;
    config_.checkpoint_path = folder_ + "/checkpoints";
    auto writer = std::move(TokenFileWriter::create(files_, config_.data_path, 61)).value();
    std::vector<std::int32_t> tokens;
    for (std::int32_t i = 0; i < 400; ++i) tokens.push_back(i * i % 61);
    EXPECT_TRUE(writer.append(tokens).ok());
    EXPECT_TRUE(writer.finish().ok());
  }
  ~ModelReplicaTest() override { fs::remove_all(folder_); }

  // `numerics`: that of the fingerprint to which the job is pinned; 0: none.
  std::unique_ptr<Replica> make(int numerics) {
    const auto open = [](const DeviceSpec& spec) { return open_test_device(spec); };
    auto made =
        make_model_replica(config_, {.files = files_, .numerics = numerics, .open_device = open});
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().to_string());
    return std::move(made).value();
  }
  static int version_of(Replica& replica) {
    return numerics_version_of(replica.fingerprint().value());
  }
  static void train(Replica& replica, int steps, std::vector<StepRecord>& records) {
    for (int i = 0; i < steps; ++i) {
      std::int64_t loss = 0;
      std::uint64_t samples = 0;
      for (std::uint32_t attempt = 0;; ++attempt) {
        loss = 0;
        samples = 0;
        replica.clear();
        for (std::uint32_t m = 0; m < replica.micro_batches(); ++m) {
          const MicroPart part = replica.compute({}, m).value();
          loss += part.loss_q;
          samples += part.sample_digest;
          ASSERT_TRUE(replica.accumulate().ok());
        }
        replica.weigh();
        replica.device().copy(replica.stream(), replica.reduced(), replica.accumulators());
        const Verdict verdict = replica.judge(attempt).value();
        EXPECT_EQ(verdict.given, verdict.reduced);
        EXPECT_NE(verdict.given, SumChecksum());
        if (!verdict.overflow) break;
        ASSERT_TRUE(replica.raise(attempt).ok());
      }
      records.push_back(replica.apply(loss, samples).value());
    }
  }
  // A job of `numerics` that trained three steps and left a checkpoint; then three more, in
  // records.
  std::vector<StepRecord> job_of(int numerics) {
    const auto replica = make(numerics);
    EXPECT_TRUE(replica->init_from_seed().ok());
    std::vector<StepRecord> records;
    EXPECT_EQ(version_of(*replica), numerics);
    train(*replica, 3, records);
    EXPECT_TRUE(replica->snapshot().value()->save(records, 0).ok());
    train(*replica, 3, records);
    return records;
  }

  PosixFileSystem files_;
  std::string folder_;
  TrainingConfig config_;
};

TEST_F(ModelReplicaTest, ANewJobComputesUnderTheNewestNumerics) {
  EXPECT_EQ(version_of(*make(0)), kNumericsVersion);
}

TEST_F(ModelReplicaTest, APartThatIsTooSmallToEvaluateOnIsRefused) {
  config_.evaluate_every = 5;
  config_.sampler.validation_fraction = 0.05;  // 2 of 49 samples
  config_.sampler.global_batch = 4;
  config_.sampler.micro_batch = 4;
  const auto open = [](const DeviceSpec& spec) { return open_test_device(spec); };
  const auto made = make_model_replica(config_, {.files = files_, .open_device = open});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().reason(), "DataInvalid");
  EXPECT_NE(made.error().what().find("has 2 samples, fewer than batch.micro (4)"),
            std::string::npos)
      << made.error().what();
  config_.sampler.micro_batch = 2;
  const auto fits = make(0);
  EXPECT_GT(fits->validation_micro_batches(), 0u);
  config_.sampler.micro_batch = 4;  // begun by a build that said nothing of it
  const std::string began = fits->fingerprint().value();
  EXPECT_TRUE(
      make_model_replica(config_, {.files = files_, .pinned = began, .open_device = open}).ok());
}

TEST_F(ModelReplicaTest, AValidationLossThatIsNotFiniteIsSaid) {
  config_.sampler.validation_fraction = 0.1;
  const auto replica = make(0);
  ASSERT_TRUE(replica->init_from_seed().ok());
  EXPECT_GT(replica->validate(0).value(), 0);
  EXPECT_NE(replica->validate(0).value(), kNotFiniteQ);
  const std::vector<float> broken(static_cast<std::size_t>(replica->sections()[0].count()), NAN);
  replica->device().copy_to_device(replica->stream(), replica->sections()[0], broken.data());
  EXPECT_EQ(replica->validate(0).value(), kNotFiniteQ);
}

// Where all micro-batches are one, the gradient of each is their mean.
TEST_F(ModelReplicaTest, SaysTheNormsOfItsGradientsInStepsThatMeasureNoise) {
  const auto replica = make(0);
  ASSERT_TRUE(replica->init_from_seed().ok());
  std::vector<StepRecord> records;
  EXPECT_EQ(replica->compute({}, 0).value().squared_norm, 0);
  train(*replica, kNoiseMeasuredEvery - 1, records);
  replica->clear();
  double squared_norm = 0;
  for (std::uint32_t m = 0; m < replica->micro_batches(); ++m) {
    squared_norm = replica->compute({}, 0).value().squared_norm;
    ASSERT_TRUE(replica->accumulate().ok());
  }
  replica->device().copy(replica->stream(), replica->reduced(), replica->accumulators());
  ASSERT_FALSE(replica->judge(0).value().overflow);
  EXPECT_NEAR(replica->norm_of_mean() / std::sqrt(squared_norm), 1, 0.01);
}

// Fine-tuning starts from any Hugging Face folder of this model, and from no other.
TEST_F(ModelReplicaTest, StartsFromAHuggingFaceFolder) {
  const auto device = open_test_device({}).value();
  const auto model = make_model(config_.model, 1, *device).value();
  std::vector<float> weights(static_cast<std::size_t>(model->table().flat_count()));
  model->init(9, weights);
  config_.init_from = folder_ + "/weights";
  fs::create_directory(config_.init_from);
  ASSERT_TRUE(write_weights(files_, config_.init_from, config_.model, model->table(), weights,
                            {.shard_bytes = 9000})
                  .ok());
  const auto replica = make(0);
  ASSERT_TRUE(replica->init_from_seed().ok());
  std::vector<float> started(weights.size());
  replica->device().copy_to_host(replica->stream(), started.data(), replica->sections()[0]);
  ASSERT_TRUE(replica->stream().synchronize().ok());
  EXPECT_EQ(started, weights);

  config_.model.heads = 1;
  const Status other = make(0)->init_from_seed();
  EXPECT_EQ(other.error().reason(), kInitFromUnusable);
  EXPECT_EQ(other.error().what(), "training.model.initFrom: " + config_.init_from +
                                      "/config.json: n_head: expected 1, found 2");
  for (const std::string& name : {std::string("nothing"), std::string(300, 'w')}) {
    config_.init_from = folder_ + "/" + name;
    EXPECT_EQ(make(0)->init_from_seed().error().reason(), kInitFromUnusable) << name;
  }
}

// No later start is luckier: the job fails by the reason of its weights, and names the tensor.
TEST_F(ModelReplicaTest, WeightsThatAreNotFiniteAreNamed) {
  const auto device = open_test_device({}).value();
  const auto model = make_model(config_.model, 1, *device).value();
  std::vector<float> weights(static_cast<std::size_t>(model->table().flat_count()));
  model->init(9, weights);
  config_.init_from = folder_ + "/weights";
  fs::create_directory(config_.init_from);
  const Parameter& last = model->table().entries().back();
  const std::string start = "training.model.initFrom: " + config_.init_from + ": ";
  const auto why = [&](float weight) {
    std::ranges::fill(std::span(weights).subspan(static_cast<std::size_t>(last.offset),
                                                 static_cast<std::size_t>(last.count)),
                      weight);
    EXPECT_TRUE(write_weights(files_, config_.init_from, config_.model, model->table(), weights,
                              {.shard_bytes = 1 << 30})
                    .ok());
    const Status started = make(0)->init_from_seed();
    EXPECT_EQ(started.error().reason(), kInitFromUnusable);
    return started.error().what();
  };
  EXPECT_EQ(why(NAN), start + "tensor " + last.name + ": expected finite numbers, found others");
  EXPECT_EQ(why(1e38f), start + "the first loss is not finite");
}

TEST_F(ModelReplicaTest, AJoinerComputesUnderTheVersionOfTheJob) {
  const auto old = make(1), now = make(2);
  EXPECT_EQ(version_of(*old), 1);
  EXPECT_EQ(version_of(*now), 2);
  EXPECT_NE(old->fingerprint().value(), now->fingerprint().value());
  // A version of another program's: the fingerprints differ, and this member is refused by that.
  EXPECT_EQ(version_of(*make(77)), kNumericsVersion);
}

TEST_F(ModelReplicaTest, ACheckpointGoesOnUnderItsOwnNumerics) {
  for (const int numerics : {1, 2, 3}) {
    fs::remove_all(config_.checkpoint_path);
    const std::vector<StepRecord> whole = job_of(numerics);
    EXPECT_EQ(read_checkpoint_info(files_, config_.checkpoint_path)->numerics_version, numerics);
    for (const int pinned : {0, numerics}) {
      const auto resumed = make(pinned);
      EXPECT_EQ(version_of(*resumed), numerics);
      auto loaded = resumed->load_checkpoint(3);
      ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
      train(*resumed, 3, loaded->records);
      EXPECT_EQ(loaded->records, whole) << "version " << numerics;
    }
    const auto other = make(numerics == 1 ? 2 : 1);  // members of one job never mix
    EXPECT_EQ(other->load_checkpoint(3).error().code(), Code::kConflict);
  }
}

// The word is of data, not of the disk of checkpoints, which would be asked again.
TEST_F(ModelReplicaTest, ADataFolderThatCannotBeListedIsNamed) {
  config_.data_path = folder_;
  TroubledFiles troubled(files_);
  const auto open = [](const DeviceSpec& spec) { return open_test_device(spec); };
  EXPECT_TRUE(make_model_replica(config_, {.files = troubled, .open_device = open}).ok());
  const std::vector<std::pair<Code, std::string>> cases = {{Code::kDenied, "DataUnreadable"},
                                                           {Code::kUnavailable, "DataUnreadable"},
                                                           {Code::kNotFound, "DataNotFound"}};
  for (const auto& [code, reason] : cases) {
    troubled.on_list = [&, code = code](const std::string& path) -> Status {
      return path == folder_ ? Status(Error(code, "listing " + path)) : ok();
    };
    const auto made = make_model_replica(config_, {.files = troubled, .open_device = open});
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.error().code(), code);
    EXPECT_EQ(made.error().reason(), reason);
  }
}

// It goes after it was listed: its successor is of the same version, and is asked for.
TEST_F(ModelReplicaTest, ACheckpointThatHasJustGoneIsNotNone) {
  job_of(2);
  TroubledFiles troubled(files_);
  troubled.on_open = [&](const std::string& path) {
    if (path.ends_with("/run.json")) fs::remove_all(fs::path(path).parent_path());
    return ok();
  };
  const auto open = [](const DeviceSpec& spec) { return open_test_device(spec); };
  const auto of_replica = make_model_replica(config_, {.files = troubled, .open_device = open});
  EXPECT_EQ(of_replica.error().code(), Code::kUnavailable);
  EXPECT_EQ(numerics_of(files_, config_.checkpoint_path, 0).value(), kNumericsVersion);
  job_of(2);
  EXPECT_EQ(numerics_of(troubled, config_.checkpoint_path, 0).error().code(), Code::kUnavailable);
}

TEST_F(ModelReplicaTest, ACheckpointOfAnUnknownVersionIsRefused) {
  job_of(kNumericsVersion);
  const std::string path = config_.checkpoint_path + "/step-00000003/run.json";
  std::string text;
  {
    std::ifstream in(path);
    text.assign(std::istreambuf_iterator<char>(in), {});
  }
  const std::string name = "\"numericsVersion\": ";
  const std::size_t at = text.find(name);
  ASSERT_NE(at, std::string::npos) << text;
  text.replace(at + name.size(), 1, "9");
  std::ofstream(path) << sealed(text);
  const auto replica = make(0);
  EXPECT_EQ(version_of(*replica), kNumericsVersion);
  EXPECT_EQ(replica->load_checkpoint(3).error().code(), Code::kInvalid);
}

// No time mends a spec, but it does mend a node: the word tells the operator which of them it is.
TEST_F(ModelReplicaTest, ADeviceThatCannotBeOpenedIsNoFaultOfTheSpec) {
  const auto refuse = [](const DeviceSpec& spec) -> Result<std::unique_ptr<Device>> {
    return Error(Code::kNotFound, "opening " + spec.kind + ": no such GPU");
  };
  const auto made =
      make_model_replica(config_, {.files = files_, .device = "cuda:1", .open_device = refuse});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code(), Code::kNotFound);
  EXPECT_EQ(made.error().reason(), "DeviceUnavailable");
  EXPECT_EQ(made.error().what(), "opening cuda:1: no such GPU");
}

}  // namespace
}  // namespace rubato::worker
